#include "train/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "kernels/operations.h"

namespace mnist_train::train {

namespace {

/// torch.optim.SGD with momentum, Nesterov and weight decay (dampening 0).
class Sgd : public Optimizer {
 public:
  Sgd(const settings::TrainOptions& options, const FlatParameters& parameters, comm::Slice slice,
      EmaModel* ema)
      : Optimizer(options, parameters, slice, ema) {
    if (options.sgd_momentum == 0) return;
    momentum_buffer_ = at::zeros_like(parameters.values());
    momentum_buffers_.push_back(slice.of(momentum_buffer_));
  }

  void step(const at::Tensor& learning_rate) override {
    // PyTorch's first step copies the gradient to the buffer; here it is added to zeros.
    at::_fused_sgd_(values_, gradients_, momentum_buffers_, options_.weight_decay,
                    options_.sgd_momentum, learning_rate, /*dampening=*/0, options_.nesterov,
                    /*maximize=*/false, /*is_first_step=*/false);
  }

  kernels::UpdateRule rule() const override {
    return kernels::SgdRule{options_.sgd_momentum, options_.weight_decay, options_.nesterov,
                            momentum_buffers_.empty() ? at::Tensor() : momentum_buffers_.front()};
  }

  const char* name() const override { return "sgd"; }

  std::vector<OptimizerTensor> state() const override {
    if (!momentum_buffer_.defined()) return {};
    return {{"momentum_buffer", momentum_buffer_}};
  }

 private:
  at::Tensor momentum_buffer_;                // undefined without momentum
  std::vector<at::Tensor> momentum_buffers_;  // its slice
};

/// torch.optim.Adam and AdamW (no amsgrad).
class Adam : public Optimizer {
 public:
  Adam(const settings::TrainOptions& options, const FlatParameters& parameters, comm::Slice slice,
       EmaModel* ema)
      : Optimizer(options, parameters, slice, ema),
        average_(at::zeros_like(parameters.values())),
        square_average_(at::zeros_like(parameters.values())),
        averages_{slice.of(average_)},
        square_averages_{slice.of(square_average_)},
        steps_{at::zeros({}, parameters.values().options())} {}

  void step(const at::Tensor& learning_rate) override {
    steps_.front().add_(1);
    const auto update = [&](const auto& kernel) {
      kernel(values_, gradients_, averages_, square_averages_, at::TensorList(), steps_,
             learning_rate, options_.adam_beta1, options_.adam_beta2, options_.weight_decay,
             options_.adam_epsilon, /*amsgrad=*/false, /*maximize=*/false);
    };
    if (decoupled()) {
      update([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
    } else {
      update([](auto&&... arguments) { at::_fused_adam_(arguments...); });
    }
  }

  kernels::UpdateRule rule() const override {
    return kernels::AdamRule{options_.adam_beta1,      options_.adam_beta2, options_.adam_epsilon,
                             options_.weight_decay,    decoupled(),         averages_.front(),
                             square_averages_.front(), steps_.front()};
  }

  const char* name() const override { return decoupled() ? "adamw" : "adam"; }

  std::vector<OptimizerTensor> state() const override {
    return {{"exp_avg", average_}, {"exp_avg_sq", square_average_}};
  }

  void restored(std::int64_t steps) override { steps_.front().fill_(static_cast<double>(steps)); }

 private:
  /// Returns whether the weight decay acts on the weights and not on the gradients.
  bool decoupled() const { return options_.optimizer == settings::OptimizerName::kAdamW; }

  at::Tensor average_;
  at::Tensor square_average_;
  std::vector<at::Tensor> averages_;  // the slice of the first, and next of the second
  std::vector<at::Tensor> square_averages_;
  std::vector<at::Tensor> steps_;  // one scalar f32, on the device
};

}  // namespace

double average_weight(double decay, std::int64_t step) {
  return std::max(1 - decay, 9 / (10 + static_cast<double>(step)));
}

EmaModel::EmaModel(models::Model& model, const FlatParameters& parameters,
                   std::shared_ptr<models::Model> average)
    : parameters_(parameters),
      model_(std::move(average)),
      values_(at::empty_like(parameters.values())) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> views = model_->parameters();
  for (std::size_t i = 0; i < views.size(); ++i) {
    views[i].set_data(parameters.view_like_parameter(values_, i));
  }
  const std::vector<at::Tensor> sources = model.buffers();
  const std::vector<at::Tensor> averages = model_->buffers();
  for (std::size_t i = 0; i < sources.size(); ++i) {
    Buffers& buffers = sources[i].is_floating_point() ? averaged_ : copied_;
    buffers.sources.push_back(sources[i]);
    buffers.averages.push_back(averages[i]);
  }
  restart();
}

void EmaModel::restart() {
  const at::NoGradGuard no_grad;
  values_.copy_(parameters_.values());
  for (Buffers* buffers : {&averaged_, &copied_}) {
    if (!buffers->sources.empty()) at::_foreach_copy_(buffers->averages, buffers->sources);
  }
}

void EmaModel::update(comm::Slice slice, const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  slice.of(values_).lerp_(slice.of(parameters_.values()), weight.to(values_.scalar_type()));
  update_buffers(weight);
}

void EmaModel::update_buffers(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  if (!averaged_.sources.empty()) {
    // at::_foreach_lerp_ takes no scalar on the device.
    const std::vector<at::Tensor> moves = at::_foreach_sub(averaged_.sources, averaged_.averages);
    at::_foreach_mul_(moves, weight.to(values_.scalar_type()));
    at::_foreach_add_(averaged_.averages, moves);
  }
  if (!copied_.sources.empty()) at::_foreach_copy_(copied_.averages, copied_.sources);
}

bool Optimizer::has_gpu_kernel() const {
  return kernels::is_used(kernels::Operation::kOptimizerUpdate, parameters_.values().device());
}

bool Optimizer::takes_sums() const {
  return clips() || !parameters_.values().is_cpu() || has_gpu_kernel();
}

bool Optimizer::update(comm::GradientAverager& averager, const at::Tensor& rates,
                       const at::Tensor& check) {
  if (has_gpu_kernel()) {
    update_by_kernel(weight_update(rates.to(at::kFloat)), check);
    return true;
  }
  if (clips() && !clip_gradients(check)) return false;
  if (!parameters_.values().is_cpu()) {
    update_by_libtorch(rates, check);
    return true;
  }
  const comm::GradientSum sum = averager.sum();
  // Compared with messages, another pass over the gradients costs nothing.
  if (!averager.adds_up_late() && !sum.is_finite()) return false;
  const kernels::WeightUpdate update = weight_update(rates);
  const bool finite = update_on_host(update, rule(), sum);
  if (ema_ != nullptr) ema_->update_buffers(update.average_weight);
  return finite;
}

/// Returns the update of the slice, without its gradients.
kernels::WeightUpdate Optimizer::weight_update(const at::Tensor& rates) const {
  kernels::WeightUpdate update;
  update.values = values_.front();
  update.learning_rate = rates.select(0, 0);
  update.bf16_copy = parameters_.bf16_values_of(slice_);
  if (ema_ != nullptr) {
    update.average = slice_.of(ema_->values());
    update.average_weight = rates.select(0, 1);
  }
  return update;
}

void Optimizer::update_by_kernel(kernels::WeightUpdate update, const at::Tensor& check) {
  update.gradients = gradients_.front();
  update.check = check;
  if (clips()) {
    update.gradient_scale =
        kernels::clipping_scale(parameters_.gradients(), *options_.max_gradient_norm);
  }
  kernels::update_weights(update, rule());
  if (ema_ != nullptr) ema_->update_buffers(update.average_weight);
}

void Optimizer::update_by_libtorch(const at::Tensor& rates, const at::Tensor& check) {
  step(rates.select(0, 0));
  const at::Tensor largest =
      at::linalg_vector_norm(values_.front(), std::numeric_limits<double>::infinity());
  at::Tensor(check).add_(largest * 0);
  parameters_.refresh_bf16_copy(slice_);
  if (ema_ != nullptr) ema_->update(slice_, rates.select(0, 1));
}

/// Scales as torch.nn.utils.clip_grad_norm_ does, without reading the norm back from a GPU. Returns
/// whether the norm is finite, as `update` does.
bool Optimizer::clip_gradients(const at::Tensor& check) {
  const at::Tensor& gradients = parameters_.gradients();
  const at::Tensor norm = at::linalg_vector_norm(gradients, 2);
  if (!norm.is_cpu()) {
    at::Tensor(check).add_(norm * 0);
  } else if (!std::isfinite(norm.item<float>())) {
    return false;
  }
  gradients_.front().mul_((*options_.max_gradient_norm / (norm + 1e-6)).clamp_max(1.0));
  return true;
}

std::unique_ptr<Optimizer> make_optimizer(const settings::TrainOptions& options,
                                          const FlatParameters& parameters,
                                          std::optional<comm::Slice> slice, EmaModel* ema) {
  const comm::Slice updated = slice.value_or(comm::Slice{0, parameters.values().numel()});
  switch (options.optimizer) {
    case settings::OptimizerName::kSgd:
      return std::make_unique<Sgd>(options, parameters, updated, ema);
    case settings::OptimizerName::kAdam:
    case settings::OptimizerName::kAdamW:
      return std::make_unique<Adam>(options, parameters, updated, ema);
  }
  throw Error(ExitCode::kConfig, "an optimizer without a case in make_optimizer");
}

}  // namespace mnist_train::train
