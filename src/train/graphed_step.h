#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerator/device.h"
#include "loader/batch.h"
#include "train/step.h"

namespace mnist_train::train {

/// Takes steps by replaying a captured one where it can: for global batches that are full and split
/// among the ranks as the captured one was, after a few eager steps in which libraries and
/// allocators settle. All other steps (the tail of an epoch) are eager, and compute the same.
class GraphedStep {
 public:
  /// `step` is kept by reference. `samples`: those of a full global batch.
  GraphedStep(Step& step, std::int64_t samples, std::unique_ptr<accelerator::DeviceGraph> graph);

  /// Takes the whole step, of one batch. `shard_sizes`: the samples of each rank, by which all
  /// ranks decide alike, since either all of them or none must capture a collective. Collective.
  /// Throws as `Step::run` does, and Error(kRunFailed) when the step cannot be captured.
  void run(const StepBatches& batches, const std::vector<std::int64_t>& shard_sizes);

 private:
  bool can_replay(std::int64_t samples, const std::vector<std::int64_t>& shard_sizes);
  void capture(const loader::Batch& batch);

  Step& step_;
  std::int64_t samples_;
  std::unique_ptr<accelerator::DeviceGraph> graph_;
  std::vector<std::int64_t> shard_sizes_;  // those that are captured, or will be after the warm-up
  int warm_up_steps_left_ = 0;
  loader::Batch input_;  // what the graph reads; undefined until there is one
};

}  // namespace mnist_train::train
