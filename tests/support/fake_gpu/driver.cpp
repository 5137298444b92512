/// CUDA's driver API: the device queries of LibTorch and mnist-train's front end, and loading of
/// kernels compiled at run time; kernels that nvrtc.cpp compiled are computed, others are no-ops.
/// Looking up a function that is neither here nor a stub (CMakeLists.txt) fails with a message.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "support/fake_gpu/device.h"
#include "support/fake_gpu/kernels.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/settings.h"

namespace mnist_train::fake_gpu {

namespace {

/// The one context shared by all devices, since nothing depends on which is current.
CUcontext the_context() {
  static char context = 0;
  return reinterpret_cast<CUcontext>(&context);
}

/// Finds a function's newest version, like the driver: cuDeviceTotalMem_v2 for cuDeviceTotalMem.
void* find_function(const std::string& name) {
  static void* const kLibrary = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (kLibrary == nullptr) return nullptr;
  void* function = ::dlsym(kLibrary, (name + "_v2").c_str());
  return function != nullptr ? function : ::dlsym(kLibrary, name.c_str());
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return device_count() > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = device_count();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int index) {
  if (index < 0 || index >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *device = index;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  std::snprintf(name, static_cast<std::size_t>(length), "%s", kDeviceName);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice) {
  *bytes = device_memory_bytes();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = device_attribute(attribute);
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can_access, CUdevice, CUdevice) {
  *can_access = 0;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  static thread_local char buffer[40];
  std::snprintf(buffer, sizeof buffer, "driver error %d", static_cast<int>(error));
  *text = buffer;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) { return cuGetErrorString(error, text); }

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = the_context();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return cuCtxGetCurrent(context); }

CUresult cuGetProcAddress(const char* name, void** function, int, cuuint64_t,
                          CUdriverProcAddressQueryResult* status) {
  *function = find_function(name);
  const bool found = *function != nullptr;
  if (status != nullptr) {
    *status = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  if (found) return CUDA_SUCCESS;
  return static_cast<CUresult>(not_implemented(name, CUDA_ERROR_NOT_FOUND));
}

}  // extern "C"

namespace {

struct Module {
  BindKernel* bind = nullptr;  // null: its kernels are no-ops
};

/// Creates a kernel of a module. It and its name are never freed, because the report uses them.
Kernel* make_kernel(const char* name, const Module& module) {
  return new Kernel{(new std::string(name))->c_str(), module.bind};
}

/// Loads the library contained in an image made by nvrtc.cpp, and never unloads it, because graphs
/// refer to its kernels. Returns its kBindKernel function, or null for any other image.
BindKernel* load_library(const char* image) {
  if (std::strncmp(image, kImageMagic, sizeof kImageMagic) != 0) return nullptr;
  std::uint64_t size = 0;
  std::memcpy(&size, image + sizeof kImageMagic, sizeof size);
  const int file = ::memfd_create("kernels", MFD_CLOEXEC);
  const char* bytes = image + sizeof kImageMagic + sizeof size;
  for (std::uint64_t written = 0; written < size;) {
    const ssize_t more = ::write(file, bytes + written, size - written);
    if (more <= 0) return nullptr;
    written += static_cast<std::uint64_t>(more);
  }
  void* const library =
      ::dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    say("cannot load compiled kernels: ", ::dlerror());
    return nullptr;
  }
  return reinterpret_cast<BindKernel*>(::dlsym(library, kBindKernel));
}

CUresult result_of(cudaError_t error) {
  return error == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (check_unsafe_call("cuModuleLoadData") != cudaSuccess) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  *module = reinterpret_cast<CUmodule>(new Module{load_library(static_cast<const char*>(image))});
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(module, image);
}

CUresult cuModuleUnload(CUmodule module) {
  delete reinterpret_cast<Module*>(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  const Module& module = *reinterpret_cast<const Module*>(handle);
  const bool computes = module.bind != nullptr;
  if (computes && !module.bind(name, nullptr, nullptr, 0, 0, nullptr)) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(make_kernel(name, module));
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) {
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int block_size,
                                                     std::size_t) {
  *blocks = resident_blocks(block_size);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** arguments, void**) {
  if (!has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
  return result_of(
      launch_kernel(reinterpret_cast<const Kernel*>(function), shape, arguments, stream));
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
