#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>

#include "checkpoint/checkpoint_folder.h"

namespace mnist_train::checkpoint {

/// Writes checkpoints on a thread of its own, one at a time, while training goes on: a snapshot is
/// a copy, and hashing, writing, syncing, reading back and clearing away take their time behind it.
/// What goes wrong there is thrown by the next call of `check`, `start` or `wait`; the checkpoints
/// of before are then intact.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(CheckpointFolder folder) : folder_(std::move(folder)) {}
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Waits; an error that nobody asked for any more is logged.
  ~CheckpointWriter();

  /// Waits for the one before and begins to save `snapshot` as that of `step`; `best`: also as the
  /// best one. Throws Error(kCheckpoint) of the one before.
  void start(TensorFile snapshot, std::int64_t step, bool best);
  /// Throws what has gone wrong so far; waits for nothing.
  void check();
  /// Until the last one is on disk. Throws Error(kCheckpoint).
  void wait();

 private:
  void run(const TensorFile& snapshot, std::int64_t step, bool best) noexcept;

  CheckpointFolder folder_;
  std::thread thread_;
  std::exception_ptr failure_;       // the thread's, read when it has ended
  std::atomic<bool> failed_{false};  // so that `check` need not wait
};

}  // namespace mnist_train::checkpoint
