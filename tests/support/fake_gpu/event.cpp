#include "support/fake_gpu/event.h"

#include <chrono>
#include <utility>

#include "support/fake_gpu/message.h"
#include "support/fake_gpu/report.h"

namespace mnist_train::fake_gpu {

namespace {

double now_s() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

cudaError_t refuse_external(const char* call) {
  say_misuse(call, "external events in a capture are not implemented by the stand-in");
  return cudaErrorNotSupported;
}

}  // namespace

cudaError_t Event::record(Stream& stream, unsigned flags) {
  constexpr const char* kCall = "cudaEventRecord";
  if (device_ != stream.device()) {
    say_misuse(kCall, "the event and the stream are of different devices");
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
  if ((flags_ & cudaEventDisableTiming) == 0) {
    record.reached_s = std::make_shared<std::atomic<double>>(0);
    stream.enqueue([reached_s = record.reached_s] { *reached_s = now_s(); });
  }
  record.position = stream.end();
  set_record(std::move(record));
  return cudaSuccess;
}

cudaError_t Event::make_wait(Stream& stream, unsigned flags) {
  const Record record = last_record();
  if (record.captured.capture) return join_capture(stream, record.captured);
  if (is_capturing(stream) && (flags & cudaEventWaitExternal) != 0) {
    return refuse_external("cudaStreamWaitEvent");
  }
  if (record.stream == nullptr) return cudaSuccess;
  if (const cudaError_t error = check_no_outside_event(stream)) return error;
  if (record.stream == &stream || record.stream->has_completed(record.position)) {
    return cudaSuccess;
  }
  stream.enqueue([record] { record.stream->wait(record.position); });
  return cudaSuccess;
}

cudaError_t Event::query() {
  const Record record = last_record();
  if (const cudaError_t error = check_look(record, "cudaEventQuery")) return error;
  if (record.stream == nullptr || record.stream->has_completed(record.position)) {
    return cudaSuccess;
  }
  return cudaErrorNotReady;
}

cudaError_t Event::synchronize() {
  const Record record = last_record();
  if (const cudaError_t error = check_look(record, "cudaEventSynchronize")) return error;
  count(Counter::kSynchronizations);
  if (record.stream != nullptr) record.stream->wait(record.position);
  return cudaSuccess;
}

cudaError_t Event::get_elapsed(Event& begin, Event& end, float& milliseconds) {
  const Record first = begin.last_record();
  const Record last = end.last_record();
  for (const Record* record : {&first, &last}) {
    if (record->captured.capture) return cudaErrorCapturedEvent;
    if (!record->reached_s) return cudaErrorInvalidResourceHandle;
    if (!record->stream->has_completed(record->position)) return cudaErrorNotReady;
  }
  milliseconds = static_cast<float>(1e3 * (*last.reached_s - *first.reached_s));
  return cudaSuccess;
}

Event::Record Event::last_record() {
  const std::lock_guard lock(mutex_);
  return record_;
}

void Event::set_record(Record record) {
  const std::lock_guard lock(mutex_);
  record_ = std::move(record);
}

/// Returns the error of the host that looks at the event where it must not.
cudaError_t Event::check_look(const Record& record, const char* call) {
  if (record.captured.capture) return refuse_captured_event(record.captured, call);
  return check_unsafe_call(call);
}

}  // namespace mnist_train::fake_gpu
