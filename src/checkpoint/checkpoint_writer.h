#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>

#include "checkpoint/checkpoint_folder.h"

namespace mnist_train::checkpoint {

/// Writes checkpoints on a thread, one at a time, while training continues. An error of the thread
/// is thrown by the next call of `check`, `start` or `wait`; earlier checkpoints are then intact.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(CheckpointFolder folder) : folder_(std::move(folder)) {}
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Waits for the thread. Logs its error, if there is one.
  ~CheckpointWriter();

  /// Waits for the previous checkpoint, then begins to save `snapshot` as that of `step`, and as
  /// the best one if `best`. Throws the previous checkpoint's Error(kCheckpoint).
  void start(TensorFile snapshot, std::int64_t step, bool best);
  /// Throws the Error(kCheckpoint) of the thread, if it has failed by now. Does not wait.
  void check();
  /// Returns when the last checkpoint is on disk. Throws Error(kCheckpoint).
  void wait();

 private:
  void save(const TensorFile& snapshot, std::int64_t step, bool best) noexcept;

  CheckpointFolder folder_;
  std::thread thread_;
  std::exception_ptr failure_;       // of the thread, read when it has ended
  std::atomic<bool> failed_{false};  // so that `check` need not wait
};

}  // namespace mnist_train::checkpoint
