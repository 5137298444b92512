#include "train/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
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

/// torch.optim.SGD with momentum, Nesterov and weight decay (dampening 0). PyTorch's first step
/// copies the gradient to the buffer; here it is added to zeros.
class Sgd : public Optimizer {
 public:
  Sgd(const settings::TrainOptions& options, const FlatParameters& parameters, comm::Slice slice,
      EmaModel* ema)
      : Optimizer(options, parameters, slice, ema) {
    if (options.sgd_momentum != 0) momentum_buffer_ = at::zeros_like(parameters.values());
    for (UpdatePart& part : parts_) {
      part.rule = kernels::SgdRule{
          options.sgd_momentum, part.weight_decay, options.nesterov,
          momentum_buffer_.defined() ? part.slice.of(momentum_buffer_) : at::Tensor()};
    }
  }

  const char* name() const override { return "sgd"; }

  std::vector<OptimizerTensor> state() const override {
    if (!momentum_buffer_.defined()) return {};
    return {{"momentum_buffer", momentum_buffer_}};
  }

 private:
  at::Tensor momentum_buffer_;  // undefined without momentum
};

/// torch.optim.Adam and AdamW (no amsgrad).
class Adam : public Optimizer {
 public:
  Adam(const settings::TrainOptions& options, const FlatParameters& parameters, comm::Slice slice,
       EmaModel* ema)
      : Optimizer(options, parameters, slice, ema),
        average_(at::zeros_like(parameters.values())),
        square_average_(at::zeros_like(parameters.values())) {
    for (UpdatePart& part : parts_) {
      steps_.push_back(at::zeros({}, average_.options()));
      part.rule = kernels::AdamRule{options.adam_beta1,
                                    options.adam_beta2,
                                    options.adam_epsilon,
                                    part.weight_decay,
                                    decoupled(),
                                    part.slice.of(average_),
                                    part.slice.of(square_average_),
                                    steps_.back()};
    }
  }

  const char* name() const override { return decoupled() ? "adamw" : "adam"; }

  std::vector<OptimizerTensor> state() const override {
    return {{"exp_avg", average_}, {"exp_avg_sq", square_average_}};
  }

  void restored(std::int64_t steps) override {
    for (const at::Tensor& tensor : steps_) tensor.fill_(static_cast<double>(steps));
  }

 private:
  /// Returns whether the weight decay acts on the weights and not on the gradients.
  bool decoupled() const { return options_.optimizer == settings::OptimizerName::kAdamW; }

  at::Tensor average_;
  at::Tensor square_average_;
  std::vector<at::Tensor> steps_;  // by part: a scalar f32, on the device
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
  const std::vector<at::Tensor> trained = model.parameters();
  std::size_t number = 0;
  for (std::size_t i = 0; i < views.size(); ++i) {
    const bool is_frozen = !trained[i].requires_grad();
    views[i].set_data(is_frozen ? trained[i] : parameters.view_like_parameter(values_, number++));
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

Optimizer::Optimizer(const settings::TrainOptions& options, const FlatParameters& parameters,
                     comm::Slice slice, EmaModel* ema)
    : options_(options), parameters_(parameters), slice_(slice), ema_(ema) {
  for (const ParameterSpan& span : parameters.spans()) {
    const std::int64_t begin = std::max(span.slice.begin, slice.begin);
    const std::int64_t end = std::min(span.slice.begin + span.slice.size, slice.begin + slice.size);
    if (begin >= end) continue;
    const comm::Slice common{begin, end - begin};
    kernels::WeightUpdate update;
    update.values = common.of(parameters.values());
    update.gradients = common.of(parameters.gradients());
    update.bf16_copy = parameters.bf16_values_of(common);
    if (ema != nullptr) update.average = common.of(ema->values());
    parts_.push_back({common,
                      span.kind.learning_rate_factor,
                      span.kind.weight_decay.value_or(options.weight_decay),
                      update,
                      {}});
  }
}

bool Optimizer::update(comm::GradientAverager& averager, const at::Tensor& rates,
                       const at::Tensor& check) {
  if (has_gpu_kernel()) {
    update_by_kernel(rates.to(at::kFloat), check);
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
  bool finite = true;
  for (const UpdatePart& part : parts_) {
    const std::int64_t first = part.slice.begin - slice_.begin;
    finite = update_on_host(update_of(part, rates), part.rule, sum, first) && finite;
  }
  if (ema_ != nullptr) ema_->update_buffers(rates.select(0, 1));
  return finite;
}

/// Returns the update of a part with the rates of the step.
kernels::WeightUpdate Optimizer::update_of(const UpdatePart& part, const at::Tensor& rates) const {
  kernels::WeightUpdate update = part.update;
  update.learning_rate = rates.select(0, 0);
  if (part.learning_rate_factor != 1) {
    update.learning_rate = update.learning_rate * part.learning_rate_factor;
  }
  if (ema_ != nullptr) update.average_weight = rates.select(0, 1);
  return update;
}

void Optimizer::update_by_kernel(const at::Tensor& rates, const at::Tensor& check) {
  at::Tensor scale;
  if (clips()) {
    scale = kernels::clipping_scale(parameters_.gradients(), *options_.max_gradient_norm);
  }
  for (const UpdatePart& part : parts_) {
    kernels::WeightUpdate update = update_of(part, rates);
    update.gradient_scale = scale;
    update.check = check;
    kernels::update_weights(update, part.rule);
  }
  if (ema_ != nullptr) ema_->update_buffers(rates.select(0, 1));
}

void Optimizer::step(const at::Tensor& rates) {
  for (const UpdatePart& part : parts_)
    kernels::update_by_libtorch(update_of(part, rates), part.rule);
}

void Optimizer::update_by_libtorch(const at::Tensor& rates, const at::Tensor& check) {
  step(rates);
  const at::Tensor largest = at::linalg_vector_norm(slice_.of(parameters_.values()),
                                                    std::numeric_limits<double>::infinity());
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
  slice_.of(gradients).mul_((*options_.max_gradient_norm / (norm + 1e-6)).clamp_max(1.0));
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
