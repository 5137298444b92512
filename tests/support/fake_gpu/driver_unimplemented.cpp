/// CUDA's driver API: functions that LibTorch links with, or looks up as soon as it needs any
/// function of the driver, and that no test needs. Calling one says so and returns an error.
#include "support/fake_gpu/message.h"

namespace mnist_train::fake_gpu {

namespace {

constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED; <cuda.h> declares what is below

}  // namespace

// Without parameters: none of them is read.
#define FAKE_GPU_UNIMPLEMENTED(name) \
  extern "C" int name() { return not_implemented(#name, kNotSupported); }

// Memory by address ranges, for LibTorch's expandable segments and symmetric memory.
FAKE_GPU_UNIMPLEMENTED(cuMemAddressFree)
FAKE_GPU_UNIMPLEMENTED(cuMemAddressReserve)
FAKE_GPU_UNIMPLEMENTED(cuMemCreate)
FAKE_GPU_UNIMPLEMENTED(cuMemExportToShareableHandle)
FAKE_GPU_UNIMPLEMENTED(cuMemGetAllocationGranularity)
FAKE_GPU_UNIMPLEMENTED(cuMemGetAllocationPropertiesFromHandle)
FAKE_GPU_UNIMPLEMENTED(cuMemImportFromShareableHandle)
FAKE_GPU_UNIMPLEMENTED(cuMemMap)
FAKE_GPU_UNIMPLEMENTED(cuMemRelease)
FAKE_GPU_UNIMPLEMENTED(cuMemRetainAllocationHandle)
FAKE_GPU_UNIMPLEMENTED(cuMemSetAccess)
FAKE_GPU_UNIMPLEMENTED(cuMemUnmap)
FAKE_GPU_UNIMPLEMENTED(cuMemsetD32Async)
FAKE_GPU_UNIMPLEMENTED(cuMulticastAddDevice)
FAKE_GPU_UNIMPLEMENTED(cuMulticastBindMem)
FAKE_GPU_UNIMPLEMENTED(cuMulticastCreate)
FAKE_GPU_UNIMPLEMENTED(cuMulticastUnbind)
FAKE_GPU_UNIMPLEMENTED(cuPointerGetAttribute)
FAKE_GPU_UNIMPLEMENTED(cuStreamWriteValue32)

// Parts of a device as devices of their own.
FAKE_GPU_UNIMPLEMENTED(cuCtxFromGreenCtx)
FAKE_GPU_UNIMPLEMENTED(cuCtxPopCurrent)
FAKE_GPU_UNIMPLEMENTED(cuCtxPushCurrent)
FAKE_GPU_UNIMPLEMENTED(cuDevResourceGenerateDesc)
FAKE_GPU_UNIMPLEMENTED(cuDevSmResourceSplitByCount)
FAKE_GPU_UNIMPLEMENTED(cuDeviceGetDevResource)
FAKE_GPU_UNIMPLEMENTED(cuGreenCtxCreate)
FAKE_GPU_UNIMPLEMENTED(cuGreenCtxDestroy)
FAKE_GPU_UNIMPLEMENTED(cuGreenCtxStreamCreate)

// Kernels from files, in pieces, and on whole clusters.
FAKE_GPU_UNIMPLEMENTED(cuFuncSetCacheConfig)
FAKE_GPU_UNIMPLEMENTED(cuLaunchCooperativeKernel)
FAKE_GPU_UNIMPLEMENTED(cuLinkAddData_v2)
FAKE_GPU_UNIMPLEMENTED(cuLinkComplete)
FAKE_GPU_UNIMPLEMENTED(cuLinkCreate_v2)
FAKE_GPU_UNIMPLEMENTED(cuModuleLoad)
FAKE_GPU_UNIMPLEMENTED(cuTensorMapEncodeTiled)

#undef FAKE_GPU_UNIMPLEMENTED

}  // namespace mnist_train::fake_gpu
