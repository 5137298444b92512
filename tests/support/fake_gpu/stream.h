#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>

#include "support/fake_gpu/device.h"

namespace mnist_train::fake_gpu {

/// A stream of a device: a thread that runs one operation after the other, so that the host runs
/// ahead of it as it does of a GPU. Streams live as long as the process, because events and graphs
/// name them.
class Stream {
 public:
  /// The number of operations that a stream was given up to a moment.
  using Position = std::uint64_t;

  enum class Kind { kLegacy, kCreated };

  /// `flags` are those of cudaStreamCreateWithPriority.
  Stream(Kind kind, int device, unsigned flags) : kind_(kind), device_(device), flags_(flags) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int device() const { return device_; }
  /// Returns whether this is the device's legacy default stream.
  bool is_legacy() const { return kind_ == Kind::kLegacy; }
  /// Returns whether work of the legacy stream waits for this stream's, and the reverse.
  bool is_blocking() const { return (flags_ & cudaStreamNonBlocking) == 0; }

  /// Gives the stream work, and does not wait for it.
  Position enqueue(Operation operation);
  /// Returns the position behind everything that was enqueued so far.
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
  mutable std::mutex mutex_;  // for the members below
  std::condition_variable changed_;
  std::deque<Operation> operations_;
  Position enqueued_ = 0;
  Position completed_ = 0;
  bool has_thread_ = false;
};

/// Makes a stream of the calling thread's device.
Stream& create_stream(unsigned flags);

/// Returns the stream behind a handle of the program. The default streams, among them the one that
/// is called per-thread, are the legacy stream of the calling thread's device.
Stream& stream_of(cudaStream_t handle);

/// Returns the handle of a stream that was created.
cudaStream_t handle_of(Stream& stream);

/// Returns when everything that was enqueued on any stream of the device has completed.
void wait_for_device(int device);

/// Counts a kernel or a replay that a device begins, for FAKE_GPU_HANG_AFTER_LAUNCHES. It must be
/// called by the stream's thread.
void count_started_launch(int device);

/// Returns whether `count_started_launch` must be called, so that launches must be enqueued even
/// if they do nothing.
bool counts_started_launches();

}  // namespace mnist_train::fake_gpu
