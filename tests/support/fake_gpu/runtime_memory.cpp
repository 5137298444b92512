/// The CUDA runtime's memory: allocating, copying, filling.
#include <mutex>
#include <unordered_map>

#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/copy.h"
#include "support/fake_gpu/device_memory.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/pinned_memory.h"
#include "support/fake_gpu/report.h"
#include "support/fake_gpu/runtime.h"

namespace mnist_train::fake_gpu {

namespace {

constexpr std::size_t kSymbol_bytes = 1 << 16;

CopyRequest contiguous(void* to, const void* from, std::size_t bytes, const char* call) {
  return {to, from, bytes, /*rows=*/1, bytes, bytes, call};
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  if (const cudaError_t error = check_unsafe_call("cudaMalloc")) return remember(error);
  bind_context();
  count(Counter::kAllocations);
  *address = memory_of(current_device()).allocate(bytes);
  trace("cudaMalloc of ", bytes, " bytes: ", *address);
  return remember(*address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

/// Waits for the device, as the real one does: its work may still use the memory.
cudaError_t cudaFree(void* address) {
  if (const cudaError_t error = check_unsafe_call("cudaFree")) return remember(error);
  if (address == nullptr) return cudaSuccess;
  const int device = device_of(address);
  if (device < 0) return remember(cudaErrorInvalidValue);
  wait_for_device(device);
  return remember(memory_of(device).release(address) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  const DeviceMemory& memory = memory_of(current_device());
  *total_bytes = memory.limit();
  *free_bytes = memory.limit() - memory.allocated();
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  if (const cudaError_t error = check_unsafe_call("cudaHostAlloc")) return remember(error);
  *address = allocate_pinned(bytes);
  return remember(*address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFreeHost(void* address) {
  if (const cudaError_t error = check_unsafe_call("cudaFreeHost")) return remember(error);
  if (address == nullptr) return cudaSuccess;
  for (int device = 0; device < device_count(); ++device) wait_for_device(device);
  return remember(release_pinned(address) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned) {
  register_pinned(address, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
  return remember(unregister_pinned(address) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  const int device = device_of(address);
  if (device >= 0) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = device;
    attributes->devicePointer = const_cast<void*>(address);
    return cudaSuccess;
  }
  attributes->type = is_pinned(address) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
  attributes->device = current_device();
  attributes->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return remember(copy(stream_of(stream), contiguous(to, from, bytes, "cudaMemcpyAsync")));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  return remember(copy(stream_of(stream), contiguous(to, from, bytes, "cudaMemcpyPeerAsync")));
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  if (const cudaError_t error = check_unsafe_call("cudaMemcpy")) return remember(error);
  count(Counter::kSynchronizations);
  CopyRequest request = contiguous(to, from, bytes, "cudaMemcpy");
  request.host_waits = true;
  return remember(copy(stream_of(nullptr), request));
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  return remember(copy(stream_of(stream),
                       {to, from, width, height, to_pitch, from_pitch, "cudaMemcpy2DAsync"}));
}

cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes, cudaStream_t stream) {
  return remember(fill(stream_of(stream), address, value, bytes, "cudaMemsetAsync"));
}

cudaError_t cudaMemset(void* address, int value, std::size_t bytes) {
  if (const cudaError_t error = check_unsafe_call("cudaMemset")) return remember(error);
  return remember(fill(stream_of(nullptr), address, value, bytes, "cudaMemset"));
}

/// Gives every variable of the device the same space, since their sizes do not matter to kernels
/// that do nothing.
cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  static std::mutex mutex;
  static auto& addresses = *new std::unordered_map<const void*, void*>();
  const std::lock_guard lock(mutex);
  void*& known = addresses[symbol];
  if (known == nullptr) {
    if (const cudaError_t error = cudaMalloc(&known, kSymbol_bytes)) return error;
  }
  *address = known;
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void*, const void*, std::size_t, std::size_t, cudaMemcpyKind) {
  return remember(check_unsafe_call("cudaMemcpyToSymbol"));
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
