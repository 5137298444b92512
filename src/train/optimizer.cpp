#include "train/optimizer.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/selection.h"
#include "train/host_update.h"

namespace mnist_train::train {

namespace {

/// torch.optim.SGD with momentum, Nesterov and weight decay (dampening 0), by ATen's fused kernel.
class Sgd : public Optimizer {
 public:
  Sgd(const settings::TrainOptions& options, const FlatParameters& parameters, comm::Slice slice,
      WeightAverage* average)
      : Optimizer(options, parameters, slice, average),
        momentum_(options.sgd_momentum),
        weight_decay_(options.weight_decay),
        nesterov_(options.nesterov),
        values_{slice.of(parameters.values())},
        gradients_{slice.of(parameters.gradients())} {
    if (momentum_ == 0) return;
    momentum_buffer_ = at::zeros_like(parameters.values());
    momentum_buffers_.push_back(slice.of(momentum_buffer_));
  }

  void step(const at::Tensor& learning_rate) override {
    // A first step would only copy what is added to zeros here.
    at::_fused_sgd_(values_, gradients_, momentum_buffers_, weight_decay_, momentum_, learning_rate,
                    /*dampening=*/0, nesterov_, /*maximize=*/false,
                    /*is_first_step=*/false);
  }

  kernels::UpdateRule rule() const override {
    return kernels::SgdRule{momentum_, weight_decay_, nesterov_,
                            momentum_ == 0 ? at::Tensor() : momentum_buffers_.front()};
  }

  const char* name() const override { return "sgd"; }

  std::vector<OptimizerTensor> state() const override {
    if (!momentum_buffer_.defined()) return {};
    return {{"momentum_buffer", momentum_buffer_}};
  }

 private:
  double momentum_;
  double weight_decay_;
  bool nesterov_;
  at::Tensor momentum_buffer_;  // undefined without momentum
  // Views of the slice that this rank updates.
  std::vector<at::Tensor> values_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> momentum_buffers_;
};

/// torch.optim.Adam and AdamW (no amsgrad), by ATen's fused kernels.
class Adam : public Optimizer {
 public:
  Adam(const settings::TrainOptions& options, const FlatParameters& parameters, comm::Slice slice,
       WeightAverage* average)
      : Optimizer(options, parameters, slice, average),
        options_(options),
        average_(at::zeros_like(parameters.values())),
        square_average_(at::zeros_like(parameters.values())),
        values_{slice.of(parameters.values())},
        gradients_{slice.of(parameters.gradients())},
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

  settings::TrainOptions options_;
  at::Tensor average_;
  at::Tensor square_average_;
  // Views of the slice that this rank updates.
  std::vector<at::Tensor> values_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> averages_;
  std::vector<at::Tensor> square_averages_;
  std::vector<at::Tensor> steps_;  // one scalar f32, on the device
};

}  // namespace

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
  // Beside messages, another pass over the gradients costs nothing.
  if (!averager.adds_up_late() && !sum.is_finite()) return false;
  const kernels::WeightUpdate update = weight_update(rates);
  const bool finite = update_on_host(update, rule(), sum);
  if (average_ != nullptr) average_->update_buffers(update.average_weight);
  return finite;
}

/// Returns all that is updated, without the gradients.
kernels::WeightUpdate Optimizer::weight_update(const at::Tensor& rates) const {
  kernels::WeightUpdate update;
  update.values = slice_.of(parameters_.values());
  update.learning_rate = rates.select(0, 0);
  update.bf16_copy = parameters_.bf16_values_of(slice_);
  if (average_ != nullptr) {
    update.average = slice_.of(average_->values());
    update.average_weight = rates.select(0, 1);
  }
  return update;
}

void Optimizer::update_by_kernel(kernels::WeightUpdate update, const at::Tensor& check) {
  update.gradients = slice_.of(parameters_.gradients());
  update.check = check;
  if (clips()) {
    update.gradient_scale = kernels::clipping_scale(parameters_.gradients(), *max_gradient_norm_);
  }
  kernels::update_weights(update, rule());
  if (average_ != nullptr) average_->update_buffers(update.average_weight);
}

void Optimizer::update_by_libtorch(const at::Tensor& rates, const at::Tensor& check) {
  step(rates.select(0, 0));
  const at::Tensor largest = at::linalg_vector_norm(slice_.of(parameters_.values()),
                                                    std::numeric_limits<double>::infinity());
  at::Tensor(check).add_(largest * 0);
  parameters_.refresh_bf16_copy(slice_);
  if (average_ != nullptr) average_->update(slice_, rates.select(0, 1));
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
  slice_.of(gradients).mul_((*max_gradient_norm_ / (norm + 1e-6)).clamp_max(1.0));
  return true;
}

std::unique_ptr<Optimizer> make_optimizer(const settings::TrainOptions& options,
                                          const FlatParameters& parameters,
                                          std::optional<comm::Slice> slice,
                                          WeightAverage* average) {
  const comm::Slice updated = slice.value_or(comm::Slice{0, parameters.values().numel()});
  switch (options.optimizer) {
    case settings::OptimizerName::kSgd:
      return std::make_unique<Sgd>(options, parameters, updated, average);
    case settings::OptimizerName::kAdam:
    case settings::OptimizerName::kAdamW:
      return std::make_unique<Adam>(options, parameters, updated, average);
  }
  throw Error(ExitCode::kConfig, "an optimizer without a case in make_optimizer");
}

}  // namespace mnist_train::train
