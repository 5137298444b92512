#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "base/file.h"
#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

/// The folder `checkpoints/` of a run. It holds `step-<step>.safetensors` for the `keep` highest
/// steps, and `best.safetensors`, a link to the best checkpoint.
class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path folder, std::int64_t keep)
      : folder_(std::move(folder)), keep_(keep) {}

  std::filesystem::path path_of(std::int64_t step) const;

  /// Writes the checkpoint of `step`, reads it back and verifies it, then removes all but the
  /// newest `keep`. Throws Error(kCheckpoint) with the earlier checkpoints still in place.
  void save(const TensorFile& snapshot, std::int64_t step);
  /// Moves checkpoints of later steps than `step`, the best one too, into `abandoned/`. Returns the
  /// number of their steps. Throws Error(kCheckpoint).
  std::int64_t set_aside_later_than(std::int64_t step) const;
  /// Moves a file of the run into `abandoned/`. Throws Error(kCheckpoint).
  void set_aside(const std::filesystem::path& file) const;
  /// Marks the saved checkpoint of `step` as the best one. Throws Error(kCheckpoint).
  void mark_best(std::int64_t step) const;
  /// Returns the path of the best checkpoint, which need not exist.
  std::filesystem::path best() const { return folder_ / kBestCheckpoint; }

 private:
  std::filesystem::path folder_;
  std::int64_t keep_;
};

/// Writes checkpoints on a thread, one at a time, while training continues. An error of the thread
/// is thrown by the next call of `check`, `start` or `wait`; earlier checkpoints are then intact.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(CheckpointFolder folder) : folder_(std::move(folder)) {}
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  /// Waits for the thread. Logs its error, if there is one.
  ~CheckpointWriter();

  /// Waits for the previous checkpoint, then starts to save `snapshot` as that of `step`, and as
  /// the best one if `best`. Throws the previous checkpoint's Error(kCheckpoint).
  void start(TensorFile snapshot, std::int64_t step, bool best);
  /// Throws the Error(kCheckpoint) of the thread, if it has failed by now. Does not wait.
  void check();
  /// Returns when the last checkpoint is on disk. Throws Error(kCheckpoint).
  void wait();

 private:
  CheckpointFolder folder_;
  std::thread thread_;
  std::exception_ptr failure_;       // of the thread, read when it has ended
  std::atomic<bool> failed_{false};  // so that `check` need not wait
};

struct FoundCheckpoint {
  std::filesystem::path path;
  TensorFile file;
};

/// Returns the newest checkpoint in `folder` that is not damaged, and warns of each newer one;
/// nullopt if there are no checkpoints. Throws Error(kCheckpoint) if all are damaged.
std::optional<FoundCheckpoint> newest_valid(const std::filesystem::path& folder);

}  // namespace mnist_train::checkpoint
