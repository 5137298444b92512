#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

/// `checkpoints/` of a run: `step-<step>.safetensors` for the newest `keep`, and
/// `best.safetensors`, a link to the file that was best when it was written. Order is by step,
/// never by time of day.
class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path folder, std::int64_t keep);

  std::filesystem::path path_of(std::int64_t step) const;

  /// Removes what a killed process left half written, writes the file of this step, reads it back
  /// and verifies it, then removes what is older than the newest `keep` and what a run that was
  /// since resumed further back left behind. Throws
  /// Error(kCheckpoint); nothing is removed then.
  void save(const TensorFile& snapshot, std::int64_t step);
  /// Makes `best.safetensors` the file of this step, which must have been saved.
  void mark_best(std::int64_t step) const;

 private:
  std::filesystem::path folder_;
  std::int64_t keep_;
};

/// Steps that have a file, ascending; empty when there is no such folder.
std::vector<std::int64_t> saved_steps(const std::filesystem::path& folder);

/// The newest checkpoint that can be read and verified, with a warning for each newer one that
/// cannot; nothing when there is none at all. Throws Error(kCheckpoint) when there are some and all
/// are damaged.
struct FoundCheckpoint {
  std::filesystem::path path;
  TensorFile file;
};
std::optional<FoundCheckpoint> newest_valid(const std::filesystem::path& folder);

}  // namespace mnist_train::checkpoint
