#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>

#include "support/fake_gpu/device.h"

namespace mnist_train::fake_gpu {

/// A stream of a device: a thread that runs one operation after the other, while the host runs
/// ahead, as with a GPU. Streams are never destroyed, because events and graphs refer to them.
class Stream {
 public:
  /// The number of operations enqueued so far.
  using Position = std::uint64_t;

  enum class Kind { kLegacy, kCreated };

  /// `flags` are those of cudaStreamCreateWithPriority.
  Stream(Kind kind, int device, unsigned flags) : kind_(kind), device_(device), flags_(flags) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const { return device_; }
  /// Returns whether this is the device's legacy default stream.
  bool is_legacy() const { return kind_ == Kind::kLegacy; }
  /// Returns whether this stream and the legacy stream wait for each other's work.
  bool is_blocking() const { return (flags_ & cudaStreamNonBlocking) == 0; }

  /// Enqueues work without waiting for it.
  Position enqueue(Operation operation);
  /// Returns the position after all work enqueued so far.
  Position end() const {
    const std::lock_guard lock(mutex_);
    return enqueued_;
  }
  bool has_completed(Position position) const {
    const std::lock_guard lock(mutex_);
    return completed_ >= position;
  }
  void wait(Position position) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return completed_ >= position; });
  }

 private:
  void run();

  const Kind kind_;
  const int device_;
  const unsigned flags_;
  mutable std::mutex mutex_;  // protects the members below
  std::condition_variable changed_;
  std::deque<Operation> operations_;
  Position enqueued_ = 0;
  Position completed_ = 0;
  bool has_thread_ = false;
};

/// Creates a stream of the calling thread's device.
Stream& create_stream(unsigned flags);

/// Returns the stream of a handle. The default streams, including the per-thread one, are the
/// legacy stream of the calling thread's device.
Stream& stream_of(cudaStream_t handle);

/// Returns the handle of a created stream.
cudaStream_t handle_of(Stream& stream);

/// Waits until all work enqueued on streams of the device has completed.
void wait_for_device(int device);

/// Counts a kernel or replay that begins on a device, for FAKE_GPU_HANG_AFTER_LAUNCHES. Must be
/// called on the stream's thread.
void count_started_launch(int device);

/// Returns whether `count_started_launch` must be called; then even no-op launches are enqueued.
bool counts_started_launches();

}  // namespace mnist_train::fake_gpu
