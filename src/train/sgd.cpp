#include "train/sgd.h"

#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros_like.h>

namespace mnist_train::train {

Sgd::Sgd(const settings::TrainOptions& options, const FlatParameters& parameters, comm::Shard part)
    : momentum_(options.sgd_momentum),
      weight_decay_(options.weight_decay),
      nesterov_(options.nesterov),
      values_{part.of(parameters.values())},
      gradients_{part.of(parameters.gradients())} {
  if (momentum_ == 0) return;
  momentum_buffer_ = at::zeros_like(parameters.values());
  momentum_buffers_.push_back(part.of(momentum_buffer_));
}

void Sgd::step(const at::Tensor& learning_rate) {
  // A first step would only copy what it adds to zeros here.
  at::_fused_sgd_(values_, gradients_, momentum_buffers_, weight_decay_, momentum_, learning_rate,
                  /*dampening=*/0, nesterov_, /*maximize=*/false, /*is_first_step=*/false);
}

std::vector<OptimizerTensor> Sgd::state() const {
  if (!momentum_buffer_.defined()) return {};
  return {{"momentum_buffer", momentum_buffer_}};
}

}  // namespace mnist_train::train
