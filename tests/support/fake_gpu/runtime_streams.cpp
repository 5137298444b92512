/// The CUDA runtime's streams and events.
#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/event.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/report.h"
#include "support/fake_gpu/runtime.h"
#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

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
