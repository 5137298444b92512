#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

/// Removes the half-written files that a killed process left in `folder`. The run folder must be
/// locked, so that no other process is writing there.
void remove_leftovers(const std::filesystem::path& folder);

/// The folder `checkpoints/` of a run. It holds `step-<step>.safetensors` for the newest `keep`
/// steps, in the order of their numbers, whatever the clock said, and `best.safetensors`, a link to
/// the best checkpoint.
class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path folder, std::int64_t keep);

  std::filesystem::path path_of(std::int64_t step) const;

  /// Writes the checkpoint of `step`, reads it back and verifies it, then removes all but the
  /// newest `keep`. Throws Error(kCheckpoint), which leaves the earlier checkpoints in place.
  void save(const TensorFile& snapshot, std::int64_t step);
  /// Moves checkpoints of later steps than `step`, from which the run resumes, into `abandoned/`,
  /// also the best one if it is later. Returns how many steps those were. Throws
  /// Error(kCheckpoint).
  std::int64_t set_aside_later_than(std::int64_t step) const;
  /// Moves a file of the run into `abandoned/`. Throws Error(kCheckpoint).
  void set_aside(const std::filesystem::path& file) const;
  /// Makes the checkpoint of `step`, which must have been saved, the best one. Throws
  /// Error(kCheckpoint).
  void mark_best(std::int64_t step) const;

 private:
  std::filesystem::path best() const { return folder_ / "best.safetensors"; }

  std::filesystem::path folder_;
  std::int64_t keep_;
};

struct FoundCheckpoint {
  std::filesystem::path path;
  TensorFile file;
};

/// Returns the newest checkpoint in `folder` that is not damaged, with a warning for each newer one
/// that is; nothing when there are no checkpoints. Throws Error(kCheckpoint) when all are damaged.
std::optional<FoundCheckpoint> newest_valid(const std::filesystem::path& folder);

}  // namespace mnist_train::checkpoint
