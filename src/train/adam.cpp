#include "train/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace mnist_train::train {

Adam::Adam(const settings::TrainOptions& options, const FlatParameters& parameters,
           comm::Shard part)
    : decoupled_(options.optimizer == settings::OptimizerName::kAdamW),
      beta1_(options.adam_beta1),
      beta2_(options.adam_beta2),
      epsilon_(options.adam_epsilon),
      weight_decay_(options.weight_decay),
      average_(at::zeros_like(parameters.values())),
      square_average_(at::zeros_like(parameters.values())),
      values_{part.of(parameters.values())},
      gradients_{part.of(parameters.gradients())},
      averages_{part.of(average_)},
      square_averages_{part.of(square_average_)},
      steps_{at::zeros({}, parameters.values().options())} {}

void Adam::step(const at::Tensor& learning_rate) {
  constexpr bool kAmsgrad = false;
  constexpr bool kMaximize = false;
  steps_.front().add_(1);
  if (decoupled_) {
    at::_fused_adamw_(values_, gradients_, averages_, square_averages_, {}, steps_, learning_rate,
                      beta1_, beta2_, weight_decay_, epsilon_, kAmsgrad, kMaximize);
  } else {
    at::_fused_adam_(values_, gradients_, averages_, square_averages_, {}, steps_, learning_rate,
                     beta1_, beta2_, weight_decay_, epsilon_, kAmsgrad, kMaximize);
  }
}

std::vector<OptimizerTensor> Adam::state() const {
  return {{"exp_avg", average_}, {"exp_avg_sq", square_average_}};
}

void Adam::restored(std::int64_t steps) { steps_.front().fill_(static_cast<double>(steps)); }

}  // namespace mnist_train::train
