#include "train/graphed_step.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <utility>

namespace mnist_train::train {

namespace {

constexpr int kWarmUpSteps = 3;

}  // namespace

GraphedStep::GraphedStep(Step& step, std::int64_t samples,
                         std::unique_ptr<accelerator::DeviceGraph> graph)
    : step_(step), samples_(samples), graph_(std::move(graph)) {}

void GraphedStep::run(const StepBatches& batches, const std::vector<std::int64_t>& shard_sizes) {
  if (!can_replay(batches.samples, shard_sizes)) return step_.run(batches);
  loader::Batch batch = batches.shard(0);
  if (!input_.images.defined()) capture(batch);
  const auto from = batch.tensors();
  const auto to = input_.tensors();
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i]->defined()) to[i]->copy_(*from[i]);
  }
  graph_->replay();
}

/// Counts the warm-up steps, too, and starts again when the shards change: in these steps libraries
/// choose their kernels, which they may not do during a capture.
bool GraphedStep::can_replay(std::int64_t samples, const std::vector<std::int64_t>& shard_sizes) {
  if (samples != samples_ ||
      std::find(shard_sizes.begin(), shard_sizes.end(), 0) != shard_sizes.end()) {
    return false;
  }
  if (input_.images.defined()) return shard_sizes == shard_sizes_;
  if (shard_sizes != shard_sizes_) {
    shard_sizes_ = shard_sizes;
    warm_up_steps_left_ = kWarmUpSteps;
  }
  return warm_up_steps_left_-- == 0;
}

void GraphedStep::capture(const loader::Batch& batch) {
  input_ = batch;
  for (at::Tensor* tensor : input_.tensors()) {
    if (tensor->defined()) *tensor = at::empty_like(*tensor);
  }
  graph_->capture([this] { step_.run({1, samples_, [this](std::int64_t) { return input_; }}); });
}

}  // namespace mnist_train::train
