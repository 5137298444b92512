/// CUDA's driver API: what LibTorch and mnist-train's front end ask it about devices. Asking for a
/// function that is neither here nor in the other driver_*.cpp gives "not found", said on stderr.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include "support/fake_gpu/device.h"
#include "support/fake_gpu/message.h"

namespace mnist_train::fake_gpu {

namespace {

/// The context of every device. Nothing depends on which one is current.
CUcontext the_context() {
  static char context = 0;
  return reinterpret_cast<CUcontext>(&context);
}

/// Finds the newest version of a function, as the driver does: cuDeviceTotalMem is
/// cuDeviceTotalMem_v2.
void* find_function(const std::string& name) {
  static void* const kLibrary = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (kLibrary == nullptr) return nullptr;
  void* function = ::dlsym(kLibrary, (name + "_v2").c_str());
  return function != nullptr ? function : ::dlsym(kLibrary, name.c_str());
}

void say_not_found(const std::string& name) {
  static std::mutex mutex;
  static auto& said = *new std::set<std::string>();
  const std::lock_guard lock(mutex);
  if (said.insert(name).second) say("the driver has no function ", name);
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
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = kComputeMajor;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = kComputeMinor;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = kMultiprocessors;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = kMaxThreadsPerBlock;
      break;
    default:
      *value = 0;  // features that this device does not have
  }
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

CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }

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
  if (!found) say_not_found(name);
  if (status != nullptr) {
    *status = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
