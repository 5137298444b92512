#pragma once

#include <cstdint>
#include <memory>

#include "batch/batch.h"
#include "comm/device_graph.h"
#include "train/step.h"

namespace mnist_train::train {

/// Takes whole steps by repeating a recorded one where it can: after a few eager ones, which let
/// libraries and allocators settle, for batches that are like the first full one. All others
/// (the tail of an epoch) are eager; both compute the same. The step must take one batch.
class RecordedStep {
 public:
  /// `samples`: of a full global batch.
  RecordedStep(Step& step, std::int64_t samples, std::unique_ptr<comm::DeviceGraph> graph);

  /// Collective: from `Step::begin` to `Step::finish`. Throws Error(kRunFailed) when it cannot be
  /// recorded.
  void run(const batch::Batch& batch, std::int64_t samples);

 private:
  void run_eagerly(const batch::Batch& batch, std::int64_t samples);
  void record(const batch::Batch& batch);
  bool fits(const batch::Batch& batch) const;

  Step& step_;
  std::int64_t samples_;
  std::unique_ptr<comm::DeviceGraph> graph_;
  int warm_up_left_ = 3;
  batch::Batch input_;  // what the graph reads; undefined until there is one
};

}  // namespace mnist_train::train
