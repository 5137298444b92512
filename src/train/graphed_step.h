#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/device_graph.h"
#include "loader/batch.h"
#include "train/step.h"

namespace mnist_train::train {

/// Takes whole steps by repeating a recorded one where it can: after a few eager ones, which let
/// libraries and allocators settle, for global batches that are full and shared out as those were.
/// All others (the tail of an epoch) are eager; both compute the same. The step must take one
/// batch.
class GraphedStep {
 public:
  /// `samples`: of a full global batch.
  GraphedStep(Step& step, std::int64_t samples, std::unique_ptr<comm::DeviceGraph> graph);

  /// Collective: from `Step::begin` to `Step::finish`. `shares`: the samples of each rank, by which
  /// all ranks decide alike; a collective must be recorded by all or none of them. Throws
  /// Error(kRunFailed) when the step cannot be recorded.
  void run(const loader::Batch& batch, const std::vector<std::int64_t>& shares);

 private:
  bool can_repeat(const std::vector<std::int64_t>& shares);
  void run_eagerly(const loader::Batch& batch, std::int64_t samples);
  void record(const loader::Batch& batch);

  Step& step_;
  std::int64_t samples_;
  std::unique_ptr<comm::DeviceGraph> graph_;
  std::vector<std::int64_t> shares_;  // those that are recorded, or will be after the warm-up
  int warm_up_left_ = 0;              // eager steps with them before
  loader::Batch input_;               // what the graph reads; undefined until there is one
};

}  // namespace mnist_train::train
