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
  /// Opens the memory that the launcher handed over. Collective. Throws Error(kRunFailed).
  RunSnapshots(Worker& worker, train::Trainer& trainer);

  /// Gives the trainer of rank 0 the newest snapshot, where an earlier attempt left one that is at
  /// least as new as its newest checkpoint. A checkpoint that the lost process did not come to the
  /// end of is written now.
  std::optional<checkpoint::SnapshotFacts> restore(RunCheckpoints& checkpoints);

  /// Decides on rank 0 whether one is due behind the operation of all ranks that follows.
  void plan();
  /// Returns, behind that operation, whether to take one.
  bool is_due();
  /// Takes one of this moment. `positions`: how long the append-only files are, on rank 0.
  /// `is_checkpoint`: a checkpoint of it is written next.
  void take(const report::LogPositions& positions, bool is_checkpoint = false);

 private:
  Worker& worker_;
  train::Trainer& trainer_;
  std::optional<checkpoint::SnapshotMemory> memory_;
  std::int64_t moment_ = 0;
  double taken_s_ = 0;
};

}  // namespace mnist_train::app
