#include "train/graphed_step.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace mnist_train::train {

namespace {

constexpr int kWarmUp = 3;

std::array<at::Tensor, 4> tensors_of(const loader::Batch& batch) {
  return {batch.images, batch.labels, batch.other_labels, batch.weights};
}

at::Tensor room_for(const at::Tensor& tensor) {
  return tensor.defined() ? at::empty_like(tensor) : at::Tensor();
}

}  // namespace

GraphedStep::GraphedStep(Step& step, std::int64_t samples, std::unique_ptr<comm::DeviceGraph> graph)
    : step_(step), samples_(samples), graph_(std::move(graph)) {}

void GraphedStep::run(const loader::Batch& batch, const std::vector<std::int64_t>& shares) {
  const std::int64_t samples = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  if (samples != samples_ || !can_repeat(shares)) return run_eagerly(batch, samples);
  if (!input_.images.defined()) record(batch);
  const auto from = tensors_of(batch);
  const auto to = tensors_of(input_);
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i].defined()) to[i].copy_(from[i]);
  }
  graph_->replay();
}

/// Counts the warm-up, too, which starts anew with other shares: libraries choose their kernels in
/// it, which they may not do while a step is recorded.
bool GraphedStep::can_repeat(const std::vector<std::int64_t>& shares) {
  if (std::find(shares.begin(), shares.end(), 0) != shares.end()) return false;
  if (input_.images.defined()) return shares == shares_;
  if (shares != shares_) {
    shares_ = shares;
    warm_up_left_ = kWarmUp;
  }
  return warm_up_left_-- == 0;
}

void GraphedStep::run_eagerly(const loader::Batch& batch, std::int64_t samples) {
  step_.begin();
  step_.accumulate(batch, samples, /*last=*/true);
  step_.finish();
}

void GraphedStep::record(const loader::Batch& batch) {
  input_ = {room_for(batch.images), room_for(batch.labels), room_for(batch.other_labels),
            room_for(batch.weights)};
  graph_->record([this] { run_eagerly(input_, samples_); });
}

}  // namespace mnist_train::train
