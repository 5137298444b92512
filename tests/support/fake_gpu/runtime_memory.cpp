/// The CUDA runtime: memory, streams and events.
#include <mutex>
#include <unordered_map>

#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/copy.h"
#include "support/fake_gpu/device_memory.h"
#include "support/fake_gpu/event.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/report.h"
#include "support/fake_gpu/runtime.h"
#include "support/fake_gpu/stream.h"

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

namespace {

Event& event_of(cudaEvent_t handle) { return *reinterpret_cast<Event*>(handle); }

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  *handle = handle_of(create_stream(flags, priority));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
}

/// Leaves the stream as it is: what it was given still runs, and events may name it.
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  *priority = stream_of(handle).priority();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  constexpr const char* kCall = "cudaStreamQuery";
  const Stream& stream = stream_of(handle);
  if (const cudaError_t error = check_unsafe_call(kCall)) return remember(error);
  if (const cudaError_t error = check_not_capturing(stream, kCall)) return remember(error);
  return remember(stream.has_completed(stream.end()) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  constexpr const char* kCall = "cudaStreamSynchronize";
  Stream& stream = stream_of(handle);
  if (const cudaError_t error = check_not_capturing(stream, kCall)) return remember(error);
  if (const cudaError_t error = check_unsafe_call(kCall)) return remember(error);
  if (const cudaError_t error = check_legacy_stream(stream, kCall)) return remember(error);
  trace(kCall);
  count(Counter::kSynchronizations);
  stream.wait(stream.end());
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  return remember(event_of(event).make_wait(stream_of(handle), flags));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  return remember(submit(stream_of(handle), {NodeKind::kOther, "cudaLaunchHostFunc",
                                             [function, argument] { function(argument); }}));
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback,
                                  void* argument, unsigned) {
  Stream& stream = stream_of(handle);
  if (const cudaError_t error = check_not_capturing(stream, "cudaStreamAddCallback")) {
    return remember(error);
  }
  stream.enqueue([handle, callback, argument] { callback(handle, cudaSuccess, argument); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  *handle = reinterpret_cast<cudaEvent_t>(new Event(current_device(), flags));
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* handle) {
  return cudaEventCreateWithFlags(handle, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  delete &event_of(handle);
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned flags) {
  return remember(event_of(handle).record(stream_of(stream), flags));
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  return cudaEventRecordWithFlags(handle, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) { return remember(event_of(handle).query()); }

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return remember(event_of(handle).synchronize());
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return remember(Event::get_elapsed(event_of(begin), event_of(end), *milliseconds));
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
