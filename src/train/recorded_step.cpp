#include "train/recorded_step.h"

#include <ATen/ops/empty_like.h>

#include <array>
#include <utility>

namespace mnist_train::train {

namespace {

std::array<at::Tensor, 4> tensors_of(const batch::Batch& batch) {
  return {batch.images, batch.labels, batch.other_labels, batch.weights};
}

at::Tensor room_for(const at::Tensor& tensor) {
  return tensor.defined() ? at::empty_like(tensor) : at::Tensor();
}

}  // namespace

RecordedStep::RecordedStep(Step& step, std::int64_t samples,
                           std::unique_ptr<comm::DeviceGraph> graph)
    : step_(step), samples_(samples), graph_(std::move(graph)) {}

void RecordedStep::run(const batch::Batch& batch, std::int64_t samples) {
  if (samples != samples_ || batch.size() == 0) return run_eagerly(batch, samples);
  if (warm_up_left_ > 0) {
    --warm_up_left_;
    return run_eagerly(batch, samples);
  }
  if (!input_.images.defined()) record(batch);
  if (!fits(batch)) return run_eagerly(batch, samples);
  const auto from = tensors_of(batch);
  const auto to = tensors_of(input_);
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i].defined()) to[i].copy_(from[i]);
  }
  graph_->replay();
}

void RecordedStep::run_eagerly(const batch::Batch& batch, std::int64_t samples) {
  step_.begin();
  step_.accumulate(batch, samples, /*last=*/true);
  step_.finish();
}

void RecordedStep::record(const batch::Batch& batch) {
  input_ = {room_for(batch.images), room_for(batch.labels), room_for(batch.other_labels),
            room_for(batch.weights)};
  graph_->record([this] { run_eagerly(input_, samples_); });
}

bool RecordedStep::fits(const batch::Batch& batch) const {
  return batch.images.sizes() == input_.images.sizes() && batch.is_mixed() == input_.is_mixed();
}

}  // namespace mnist_train::train
