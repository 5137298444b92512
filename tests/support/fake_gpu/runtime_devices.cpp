/// The CUDA runtime: devices and errors.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/device.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/report.h"
#include "support/fake_gpu/runtime.h"
#include "support/fake_gpu/settings.h"
#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

namespace {

// An H100's, where LibTorch asks for them.
constexpr int kWarpSize = 32;
constexpr int kMaxThreadsPerMultiprocessor = 2048;
constexpr int kMaxBlocksPerMultiprocessor = 32;
constexpr int kMaxGridWidth = 2147483647;
constexpr int kMaxGridHeight = 65535;
constexpr int kRegisters = 65536;
constexpr int kShared_bytes = 48 * 1024;
constexpr int kSharedOptIn_bytes = 227 * 1024;
constexpr int kSharedPerMultiprocessor_bytes = 228 * 1024;
constexpr int kL2Cache_bytes = 50 << 20;

int pci_bus_of(int device) { return visible_devices().at(static_cast<std::size_t>(device)) + 1; }

void fill_limits(cudaDeviceProp& properties) {
  properties.sharedMemPerBlock = kShared_bytes;
  properties.sharedMemPerBlockOptin = kSharedOptIn_bytes;
  properties.sharedMemPerMultiprocessor = kSharedPerMultiprocessor_bytes;
  properties.regsPerBlock = kRegisters;
  properties.regsPerMultiprocessor = kRegisters;
  properties.warpSize = kWarpSize;
  properties.memPitch = kMaxGridWidth;
  properties.maxThreadsPerBlock = kMaxThreadsPerBlock;
  properties.maxThreadsDim[0] = kMaxThreadsPerBlock;
  properties.maxThreadsDim[1] = kMaxThreadsPerBlock;
  properties.maxThreadsDim[2] = 64;
  properties.maxGridSize[0] = kMaxGridWidth;
  properties.maxGridSize[1] = kMaxGridHeight;
  properties.maxGridSize[2] = kMaxGridHeight;
  properties.maxThreadsPerMultiProcessor = kMaxThreadsPerMultiprocessor;
  properties.maxBlocksPerMultiProcessor = kMaxBlocksPerMultiprocessor;
}

}  // namespace

bool is_device(int device) { return device >= 0 && device < device_count(); }

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return remember(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  set_current_device(device);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "%s", kDeviceName);
  std::memset(properties->uuid.bytes, 0x40 + pci_bus_of(device), sizeof properties->uuid.bytes);
  properties->pciBusID = pci_bus_of(device);
  properties->totalGlobalMem = device_memory_bytes();
  properties->major = kComputeMajor;
  properties->minor = kComputeMinor;
  properties->multiProcessorCount = kMultiprocessors;
  properties->totalConstMem = 65536;
  properties->textureAlignment = 512;
  properties->l2CacheSize = kL2Cache_bytes;
  properties->memoryBusWidth = 5120;
  properties->unifiedAddressing = 1;
  properties->asyncEngineCount = 3;
  properties->concurrentKernels = 1;
  properties->cooperativeLaunch = 1;
  fill_limits(*properties);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  cudaDeviceProp limits{};
  fill_limits(limits);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = kComputeMajor;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kComputeMinor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = kMaxThreadsPerBlock;
      break;
    case cudaDevAttrWarpSize:
      *value = kWarpSize;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kShared_bytes;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kSharedOptIn_bytes;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kSharedPerMultiprocessor_bytes;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = kMaxThreadsPerMultiprocessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = kMaxBlocksPerMultiprocessor;
      break;
    case cudaDevAttrL2CacheSize:
      *value = kL2Cache_bytes;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = kMaxGridWidth;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = kMaxGridHeight;
      break;
    default:
      *value = 0;  // features that this device does not have
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0",
                static_cast<unsigned>(pci_bus_of(device)));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can_access, int, int) {
  *can_access = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return remember(cudaErrorPeerAccessUnsupported);
}

cudaError_t cudaDeviceSynchronize() {
  constexpr const char* kCall = "cudaDeviceSynchronize";
  if (const cudaError_t error = check_unsafe_call(kCall)) return remember(error);
  if (const cudaError_t error = check_device_not_capturing(current_device(), kCall)) {
    return remember(error);
  }
  trace(kCall);
  count(Counter::kSynchronizations);
  wait_for_device(current_device());
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }

cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr ErrorText kUnknown{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};

/// Those that the stand-in returns, in CUDA's words.
constexpr std::array kErrors{
    ErrorText{cudaSuccess, "cudaSuccess", "no error"},
    ErrorText{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    ErrorText{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    ErrorText{cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
              "invalid configuration argument"},
    ErrorText{cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration",
              "__global__ function call is not configured"},
    ErrorText{cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction",
              "invalid device function"},
    ErrorText{cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    ErrorText{cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    ErrorText{cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
              "peer access is not supported between these two devices"},
    ErrorText{cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
              "pointer does not correspond to a registered memory region"},
    ErrorText{cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
              "invalid resource handle"},
    ErrorText{cudaErrorIllegalState, "cudaErrorIllegalState",
              "the operation cannot be performed in the present state"},
    ErrorText{cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    ErrorText{cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    ErrorText{cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
              "operation not permitted when stream is capturing"},
    ErrorText{cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
              "operation failed due to a previous error during capture"},
    ErrorText{cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
              "operation would result in a merge of separate capture sequences"},
    ErrorText{cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
              "capture was not ended in the same stream as it began"},
    ErrorText{cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
              "capturing stream has unjoined work"},
    ErrorText{cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
              "dependency created on uncaptured work in another stream"},
    ErrorText{cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
              "operation would make the legacy stream depend on a capturing blocking stream"},
    ErrorText{cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
              "attempt to terminate a thread-local capture sequence from another thread"},
    ErrorText{cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
              "operation not permitted on an event last recorded in a capturing stream"}};

const ErrorText& text_of(cudaError_t error) {
  const auto* const found = std::find_if(
      kErrors.begin(), kErrors.end(), [&](const ErrorText& entry) { return entry.error == error; });
  return found == kErrors.end() ? kUnknown : *found;
}

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }

const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }

}  // extern "C"

}  // namespace mnist_train::fake_gpu
