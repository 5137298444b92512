#pragma once

#include <cstdint>
#include <optional>

#include "app/run_checkpoints.h"
#include "app/worker.h"
#include "checkpoint/snapshot_memory.h"
#include "report/sink.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// The snapshots from which our own launcher restarts a run that lost a process: they lie in its
/// memory, cost a fraction of a percent of the time, and are so recent that next to nothing is
/// computed again. Without them (`launch.max_restarts` 0, other launchers) every method does
/// nothing. All ranks must call each method at the same moments. All references must live as long.
class RunSnapshots {
 public:
  /// Collective.
  RunSnapshots(Worker& worker, train::Trainer& trainer);

  /// Gives the trainer of rank 0 the newest snapshot, where an earlier attempt left one that is at
  /// least as new as its newest checkpoint.
  std::optional<checkpoint::SnapshotFacts> restore();

  /// Before an operation of all ranks: decides on rank 0 whether `take_if_due` behind it takes one.
  /// None is taken while `checkpoints` are being written: should that fail, the run returns to
  /// where they are due.
  void plan(const RunCheckpoints& checkpoints);
  bool is_due();
  void take(const report::LogPositions& positions, bool is_checkpoint = false);

 private:
  Worker& worker_;
  train::Trainer& trainer_;
  std::optional<checkpoint::SnapshotMemory> memory_;
  std::int64_t moment_ = 0;
  double taken_s_ = 0;
  double seconds_ = 0;  // that the last one took
};

}  // namespace mnist_train::app
