/// CUDA's driver API: kernels that are compiled while the program runs (by NVRTC) and loaded as
/// modules. Like all kernels they do nothing.
#include <cuda.h>

#include <algorithm>
#include <string>

#include "support/fake_gpu/device.h"
#include "support/fake_gpu/kernels.h"

namespace mnist_train::fake_gpu {

namespace {

constexpr int kMaxThreadsPerMultiprocessor = 2048;

/// Makes a kernel of a module. Both it and its name live as long as the process, for the report.
Kernel* make_kernel(const char* name) { return new Kernel{(new std::string(name))->c_str()}; }

CUresult result_of(cudaError_t error) {
  return error == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void*) {
  if (check_unsafe_call("cuModuleLoadData") != cudaSuccess) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  *module = reinterpret_cast<CUmodule>(new char);
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(module, image);
}

CUresult cuModuleUnload(CUmodule module) {
  delete reinterpret_cast<char*>(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = reinterpret_cast<CUfunction>(make_kernel(name));
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) {
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int block_size,
                                                     std::size_t) {
  *blocks = std::max(1, kMaxThreadsPerMultiprocessor / std::max(block_size, 1));
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** arguments, void**) {
  const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
  return result_of(
      launch_kernel(reinterpret_cast<const Kernel*>(function), shape, arguments, stream));
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
