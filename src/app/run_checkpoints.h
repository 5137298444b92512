#pragma once

#include <cstdint>
#include <utility>

#include "app/worker.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folder.h"
#include "data/dataset.h"
#include "report/sink.h"
#include "train/trainer.h"

namespace mnist_train::app {

/// The checkpoints that a run saves. Rank 0 takes them and a thread writes them while training goes
/// on; on the other ranks every method that changes something does nothing. All references must
/// live as long.
class RunCheckpoints {
 public:
  RunCheckpoints(Worker& worker, const data::Dataset& dataset, train::Trainer& trainer);

  /// Returns after how many more steps `checkpoint.every_steps` asks for a checkpoint.
  std::int64_t steps_left() const;
  /// Returns whether `checkpoint.every_steps` asks for a checkpoint after the last step.
  bool is_due_after_step() const;
  /// Returns whether the config asks for a checkpoint after the epoch that has just been recorded.
  bool is_due_after_epoch() const;
  /// Takes a checkpoint of this moment, unless there is one of this step. `positions`: how long the
  /// append-only files are. Throws Error(kCheckpoint) when the one before could not be written.
  void save(const report::LogPositions& positions);
  /// Throws Error(kCheckpoint) when the last one could not be written; waits for nothing.
  void check() { writer_.check(); }
  /// Waits until the last one is on disk. Throws Error(kCheckpoint).
  void wait();
  /// Returns the seconds that training waited for checkpoints since the last call.
  double take_seconds() { return std::exchange(seconds_, 0); }

 private:
  checkpoint::RunFacts facts(const report::LogPositions& positions) const;

  Worker& worker_;
  const data::Dataset& dataset_;
  train::Trainer& trainer_;
  checkpoint::CheckpointWriter writer_;
  std::int64_t saved_step_ = -1;
  double seconds_ = 0;
};

}  // namespace mnist_train::app
