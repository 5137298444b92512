/// The CUDA runtime: memory, copies, streams and events.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/device_memory.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/report.h"
#include "support/fake_gpu/runtime.h"
#include "support/fake_gpu/settings.h"
#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

namespace {

/// A copy of `rows` rows of `width` bytes; the pitches are the distances between row starts.
struct CopyRequest {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t width = 0;
  std::size_t rows = 1;
  std::size_t to_pitch = 0;
  std::size_t from_pitch = 0;
  const char* call = "";    // a literal
  bool host_waits = false;  // even for pinned memory
};

/// How many steps' sums mnist-train reads at once (train::GraphedStep). A step's sums
/// (train::StepSums) are loss, correct predictions, samples and stop requests, in fp32.
constexpr std::array<std::size_t, 2> kStepsOfReads{1, 16};
constexpr std::size_t kSums = 4;
constexpr std::size_t kBytesOfStep = kSums * sizeof(float);

bool reads_step_sums(const CopyRequest& request) {
  const bool to_host = device_of(request.from) >= 0 && device_of(request.to) < 0;
  return to_host && request.rows == 1 &&
         std::any_of(kStepsOfReads.begin(), kStepsOfReads.end(),
                     [&](std::size_t steps) { return request.width == steps * kBytesOfStep; });
}

/// Overwrites sums with NaN if FAKE_GPU_NAN_AFTER_READS applies to this read.
void spoil_step_sums(void* sums, std::size_t bytes) {
  static std::atomic<long> reads{0};
  if (++reads < settings().nan_after_reads) return;
  auto* const values = static_cast<float*>(sums);
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) {
    if (i % kSums >= settings().nan_from) values[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

void run_copy(const CopyRequest& request) {
  auto* to = static_cast<std::byte*>(host_address(request.to));
  const auto* from = static_cast<const std::byte*>(host_address(request.from));
  for (std::size_t row = 0; row < request.rows; ++row) {
    std::memmove(to + row * request.to_pitch, from + row * request.from_pitch, request.width);
  }
  if (settings().nan_after_reads > 0 && reads_step_sums(request)) {
    spoil_step_sums(to, request.width);
  }
}

bool is_pageable(const void* address) { return device_of(address) < 0 && !is_pinned(address); }

std::size_t reach(const CopyRequest& request, std::size_t pitch) {
  return (request.rows - 1) * pitch + request.width;
}

/// Submits a copy to the stream. As in CUDA, the host waits for a copy from or to pageable memory.
/// Fails if device memory is not allocated.
cudaError_t copy(Stream& stream, const CopyRequest& request) {
  if (request.width == 0 || request.rows == 0) return cudaSuccess;
  if (!is_valid_memory(request.to, reach(request, request.to_pitch)) ||
      !is_valid_memory(request.from, reach(request, request.from_pitch))) {
    say_misuse(request.call, "the device memory is not allocated");
    return cudaErrorInvalidValue;
  }
  const bool captured = is_capturing(stream);
  const bool pageable = is_pageable(request.to) || is_pageable(request.from);
  if (captured && pageable) say_misuse(request.call, "note: a graph copies pageable memory");
  const cudaError_t error =
      submit(stream, {NodeKind::kCopy, request.call, [request] { run_copy(request); }});
  if (error != cudaSuccess || captured) return error;
  count(Counter::kCopies);
  if (pageable) count(Counter::kPageableCopies);
  if (pageable || request.host_waits) stream.wait(stream.end());
  return cudaSuccess;
}

/// Submits a fill with the byte `value` to the stream.
cudaError_t fill(Stream& stream, void* address, int value, std::size_t bytes, const char* call) {
  if (!is_valid_memory(address, bytes)) {
    say_misuse(call, "the device memory is not allocated");
    return cudaErrorInvalidValue;
  }
  return submit(stream, {NodeKind::kFill, call, [address, value, bytes] {
                           std::memset(host_address(address), value, bytes);
                         }});
}

constexpr std::size_t kSymbol_bytes = 1 << 16;

CopyRequest contiguous(void* to, const void* from, std::size_t bytes, const char* call) {
  return {to, from, bytes, /*rows=*/1, bytes, bytes, call};
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  if (const cudaError_t error = check_unsafe_call("cudaMalloc")) return remember(error);
  bind_context();
  *address = memory_of(current_device()).allocate(bytes);
  return remember(*address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

/// Waits for the device, as the real function does, because its work may still use the memory.
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

/// Allocates the same space for every device variable: their sizes do not matter to no-op kernels.
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

cudaError_t refuse_external(const char* call) {
  say_misuse(call, "the mock does not implement external events in a capture");
  return cudaErrorNotSupported;
}

/// An event: a position in a stream or, if it was recorded while the stream was capturing, a point
/// of that capture. Streams can join such a point, but the host cannot query it.
class Event {
 public:
  explicit Event(int device) : device_(device) {}

  /// `flags` are those of cudaEventRecordWithFlags.
  cudaError_t record(Stream& stream, unsigned flags) {
    constexpr const char* kCall = "cudaEventRecord";
    if (device_ != stream.device()) {
      say_misuse(kCall, "the event and the stream belong to different devices");
      return cudaErrorInvalidResourceHandle;
    }
    Record record;
    record.stream = &stream;
    if (const cudaError_t error = get_capture_point(stream, record.captured)) return error;
    if (record.captured.capture) {
      if ((flags & cudaEventRecordExternal) != 0) return refuse_external(kCall);
      set_record(std::move(record));
      return cudaSuccess;
    }
    if (const cudaError_t error = check_legacy_stream(stream, kCall)) return error;
    record.position = stream.end();
    set_record(std::move(record));
    return cudaSuccess;
  }

  /// Makes the stream wait for the event; `flags` are those of cudaStreamWaitEvent.
  cudaError_t make_wait(Stream& stream, unsigned flags) {
    const Record record = last_record();
    if (record.captured.capture) return join_capture(stream, record.captured);
    if (is_capturing(stream) && (flags & cudaEventWaitExternal) != 0) {
      return refuse_external("cudaStreamWaitEvent");
    }
    if (record.stream == nullptr) return cudaSuccess;
    if (const cudaError_t error = check_no_outside_event(stream)) return error;
    if (record.stream == &stream || record.has_completed()) return cudaSuccess;
    stream.enqueue([record] { record.stream->wait(record.position); });
    return cudaSuccess;
  }

  /// Returns cudaErrorNotReady until the stream has reached the event.
  cudaError_t query() {
    const Record record = last_record();
    if (const cudaError_t error = check_look(record, "cudaEventQuery")) return error;
    return record.has_completed() ? cudaSuccess : cudaErrorNotReady;
  }

  cudaError_t synchronize() {
    const Record record = last_record();
    if (const cudaError_t error = check_look(record, "cudaEventSynchronize")) return error;
    count(Counter::kSynchronizations);
    if (record.stream != nullptr) record.stream->wait(record.position);
    return cudaSuccess;
  }

 private:
  struct Record {
    Stream* stream = nullptr;  // null: never recorded
    Stream::Position position = 0;
    CapturePoint captured;  // its capture is null if recorded outside of one

    bool has_completed() const { return stream == nullptr || stream->has_completed(position); }
  };

  Record last_record() {
    const std::lock_guard lock(mutex_);
    return record_;
  }
  void set_record(Record record) {
    const std::lock_guard lock(mutex_);
    record_ = std::move(record);
  }
  /// Returns the error if the host must not query the event.
  static cudaError_t check_look(const Record& record, const char* call) {
    if (record.captured.capture) return refuse_captured_event(record.captured, call);
    return check_unsafe_call(call);
  }

  const int device_;
  std::mutex mutex_;  // protects record_
  Record record_;
};

Event& event_of(cudaEvent_t handle) { return *reinterpret_cast<Event*>(handle); }

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int) {
  *handle = handle_of(create_stream(flags));
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0);
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

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) {
  *handle = reinterpret_cast<cudaEvent_t>(new Event(current_device()));
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

}  // extern "C"

}  // namespace mnist_train::fake_gpu
