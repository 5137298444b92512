#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/communicator.h"
#include "train/trainer.h"

namespace mnist_train::checkpoint {

/// A snapshot's content beside the tensors.
struct SnapshotFacts {
  train::Progress progress;
  std::int64_t metrics_bytes = 0;  // length of metrics.jsonl when it was taken
  std::int64_t event_bytes = 0;    // length of TensorBoard's file; 0 without one
  bool is_checkpoint = false;      // a checkpoint of the same step is written, too
};

/// The newest training states of the ranks of one host, in a memory file that their launcher keeps
/// while ranks come and go: the newest two, and the newest of which a checkpoint is written. Each
/// rank writes its part of the weights and of the optimizer's state, rank 0 also buffers and
/// progress, and seals it with step and XXH3-128. A snapshot counts only if every rank has sealed
/// it: if a rank is killed meanwhile, the one before remains. Snapshots are never mapped for
/// writing, so no stray pointer reaches them.
class SnapshotMemory {
 public:
  /// Opens the memory file `fd` for the trainer's tensors, and clears it if its content is of
  /// others. Collective. Throws Error(kRunFailed).
  SnapshotMemory(int fd, const train::Trainer& trainer, const comm::Communicator& communicator);
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  /// Announces on rank 0 that all ranks take a snapshot at the moment of this number.
  void plan(std::int64_t moment);
  /// Returns whether that is this moment. Between `plan` and this call there must be a collective.
  bool is_planned(std::int64_t moment) const;
  /// Returns how long an undisturbed snapshot took rank 0, in earlier attempts too; 0 until enough
  /// were taken to know.
  double seconds() const;

  /// Writes this rank's part of the trainer's state. All ranks must call it after the same step,
  /// and none may call it again before all have returned. Rank 0's `facts` count. Throws
  /// Error(kRunFailed).
  void take(const train::Trainer& trainer, const SnapshotFacts& facts);

  /// Returns the steps of the snapshots that all ranks have sealed, ascending.
  std::vector<std::int64_t> steps() const;
  /// Returns whether a checkpoint of that snapshot was to be written.
  bool is_checkpoint(std::int64_t step) const;
  /// Gives the trainer, on this rank alone, the state of that snapshot. Returns nullopt and leaves
  /// the trainer unchanged if the snapshot is damaged.
  std::optional<SnapshotFacts> restore(train::Trainer& trainer, std::int64_t step) const;

 private:
  struct Plan;
  struct Seal;

  Seal& seal(int slot, int rank) const;
  std::size_t begin_of(int slot) const;
  std::int64_t step_in(int slot) const;
  int slot_of(std::int64_t step) const;
  std::optional<SnapshotFacts> verified_facts(int slot, const std::uint8_t* bytes,
                                              const StateTensors& state) const;

  int fd_;
  int rank_;
  int world_size_;
  std::size_t head_bytes_;
  std::size_t slot_bytes_;
  std::shared_ptr<std::uint8_t> head_;
  Plan* plan_ = nullptr;      // in `head_`, followed by the seals
  int newest_slot_ = -1;      // of those that were taken or found here
  int checkpoint_slot_ = -1;  // the newest one that is a checkpoint, too
};

}  // namespace mnist_train::checkpoint
