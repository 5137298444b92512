#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/communicator.h"
#include "train/trainer.h"

namespace mnist_train::checkpoint {

/// A snapshot's content other than the tensors.
struct SnapshotFacts {
  train::Progress progress;
  std::int64_t metrics_bytes = 0;  // length of metrics.jsonl when the snapshot was taken
  std::int64_t event_bytes = 0;    // length of the TensorBoard file; 0 if there is none
  bool is_checkpoint = false;      // a checkpoint of the same step is also written
};

/// The newest training states of the ranks of one host, in an in-memory file that their launcher
/// keeps when ranks restart: the newest two, and the newest one that is also written as a
/// checkpoint. Each rank writes its part of the weights and of the optimizer state, rank 0 also the
/// buffers and the progress, and seals it with the step and XXH3-128. A snapshot is valid only if
/// every rank has sealed it: if a rank is killed in the meantime, the previous one remains.
/// Snapshots are never mapped for writing, so stray pointers cannot damage them.
class SnapshotMemory {
 public:
  /// Opens the in-memory file `fd` for the trainer's tensors, and clears it if its size does not
  /// fit them. Collective. Throws Error(kRunFailed).
  SnapshotMemory(int fd, const train::Trainer& trainer, const comm::Communicator& communicator);
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  /// Announces, on rank 0, that all ranks take a snapshot at the moment with this number.
  void plan(std::int64_t moment);
  /// Returns whether a snapshot is planned for this moment. There must be a collective between
  /// `plan` and this call.
  bool is_planned(std::int64_t moment) const;
  /// Returns the shortest time in seconds that a snapshot took on rank 0, including earlier
  /// attempts; 0 until enough were timed.
  double seconds() const;

  /// Writes this rank's part of the trainer's state. All ranks must call it after the same step,
  /// and none may call it again before all have returned. Rank 0's `facts` are stored, but
  /// `is_checkpoint` must be the same on all ranks. Throws Error(kRunFailed).
  void take(const train::Trainer& trainer, const SnapshotFacts& facts);

  /// Returns the steps of the snapshots that all ranks have sealed, ascending.
  std::vector<std::int64_t> steps() const;
  /// Returns whether that snapshot was also to be written as a checkpoint.
  bool is_checkpoint(std::int64_t step) const;
  /// Restores the trainer's state from that snapshot, on this rank only. Returns nullopt and leaves
  /// the trainer unchanged if the snapshot is damaged.
  std::optional<SnapshotFacts> restore(train::Trainer& trainer, std::int64_t step) const;

 private:
  struct Plan;
  struct Seal;

  Seal& seal(int slot, int rank) const;
  std::size_t begin_of(int slot) const {
    return head_bytes_ + static_cast<std::size_t>(slot) * slot_bytes_;
  }
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
  int newest_slot_ = -1;      // of those taken or found by this process
  int checkpoint_slot_ = -1;  // the newest one that is also a checkpoint
};

}  // namespace mnist_train::checkpoint
