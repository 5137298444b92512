#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

/// An event: a position in a stream, or, where it was recorded while the stream captured, a point
/// of that capture, which streams can join and the host cannot look at.
class Event {
 public:
  /// `flags` are those of cudaEventCreateWithFlags.
  Event(int device, unsigned flags) : device_(device), flags_(flags) {}

  /// `flags` are those of cudaEventRecordWithFlags.
  cudaError_t record(Stream& stream, unsigned flags);
  /// Makes the stream wait for the event; `flags` are those of cudaStreamWaitEvent.
  cudaError_t make_wait(Stream& stream, unsigned flags);
  /// Returns cudaErrorNotReady while the stream has not come so far.
  cudaError_t query();
  cudaError_t synchronize();
  /// Sets `milliseconds` to the time between two events that were recorded with timing.
  static cudaError_t get_elapsed(Event& begin, Event& end, float& milliseconds);

 private:
  struct Record {
    Stream* stream = nullptr;  // null: never recorded
    Stream::Position position = 0;
    CapturePoint captured;                           // of no capture where it was not captured
    std::shared_ptr<std::atomic<double>> reached_s;  // null without timing
  };

  Record last_record();
  void set_record(Record record);
  cudaError_t check_look(const Record& record, const char* call);

  const int device_;
  const unsigned flags_;
  std::mutex mutex_;  // for record_
  Record record_;
};

}  // namespace mnist_train::fake_gpu
