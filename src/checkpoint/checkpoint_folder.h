#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "checkpoint/tensor_file.h"

namespace mnist_train::checkpoint {

/// What a process that was killed while it wrote a file of this folder has left. The run folder
/// must be locked, so that nobody else writes.
void remove_leftovers(const std::filesystem::path& folder);

/// `checkpoints/` of a run: `step-<step>.safetensors` for the newest `keep`, and
/// `best.safetensors`, a link to the file that was best when it was written. Order is by step,
/// never by time of day.
class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path folder, std::int64_t keep);

  std::filesystem::path path_of(std::int64_t step) const;

  /// Removes what a killed process left half written, writes the file of this step, reads it back
  /// and verifies it, then removes what is older than the newest `keep`. Throws Error(kCheckpoint);
  /// nothing is removed then.
  void save(const TensorFile& snapshot, std::int64_t step);
  /// For a run that goes on from this step: moves the files of later ones into `abandoned/`, the
  /// best among them. Returns how many steps. Throws Error(kCheckpoint).
  std::int64_t set_aside_later_than(std::int64_t step) const;
  /// Moves a file of the run into `abandoned/`. Throws Error(kCheckpoint).
  void set_aside(const std::filesystem::path& file) const;
  /// Makes `best.safetensors` the file of this step, which must have been saved.
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

/// The newest checkpoint that can be read and verified, with a warning for each newer one that
/// cannot; nothing when there is none at all. Throws Error(kCheckpoint) when there are some and all
/// are damaged.
std::optional<FoundCheckpoint> newest_valid(const std::filesystem::path& folder);

}  // namespace mnist_train::checkpoint
