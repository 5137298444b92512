#include "train/optimizer.h"

#include <ATen/TensorOperators.h>
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
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>
#include <variant>

#include "base/cpu.h"
#include "base/parallel.h"
#include "base/print.h"

namespace mnist_train::train {

namespace {

constexpr std::int64_t kBlock = comm::DeferredSum::kBlock;
constexpr std::int64_t kGrain = 32 * kBlock;  // elements; the minimum work per thread

/// Moves `to` towards `from` by a fraction `weight` of their difference.
MNIST_TRAIN_VECTORIZED void lerp_towards(const float* __restrict from, std::int64_t count,
                                         float weight, float* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += weight * (from[i] - to[i]);
}

struct SgdFactors {
  float rate;
  float momentum;
  float decay;
  bool nesterov;
};

MNIST_TRAIN_VECTORIZED void sgd_update(const float* __restrict gradients, std::int64_t count,
                                       SgdFactors factors, float* __restrict values) {
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] -= factors.rate * (gradients[i] + factors.decay * values[i]);
  }
}

MNIST_TRAIN_VECTORIZED void momentum_update(const float* __restrict gradients, std::int64_t count,
                                            SgdFactors factors, float* __restrict buffer,
                                            float* __restrict values) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float gradient = gradients[i] + factors.decay * values[i];
    buffer[i] = factors.momentum * buffer[i] + gradient;
    values[i] -=
        factors.rate * (factors.nesterov ? gradient + factors.momentum * buffer[i] : buffer[i]);
  }
}

struct AdamFactors {
  float fraction1;              // 1 - beta1
  float fraction2;              // 1 - beta2
  float gradient_decay;         // weight decay added to the gradient; 0 if decoupled
  float weight_factor;          // 1 - learning rate * decay if decoupled, else 1
  float step_size;              // learning rate / (1 - beta1^steps)
  float bias_correction2_sqrt;  // square root of 1 - beta2^steps
  float epsilon;
};

MNIST_TRAIN_VECTORIZED void adam_update(const float* __restrict gradients, std::int64_t count,
                                        AdamFactors factors, float* __restrict average,
                                        float* __restrict squares, float* __restrict values) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float gradient = gradients[i] + factors.gradient_decay * values[i];
    average[i] += factors.fraction1 * (gradient - average[i]);
    squares[i] += factors.fraction2 * (gradient * gradient - squares[i]);
    values[i] = factors.weight_factor * values[i] -
                factors.step_size * average[i] /
                    (std::sqrt(squares[i]) / factors.bias_correction2_sqrt + factors.epsilon);
  }
}

/// Returns a pointer to the first element of a block of a flat tensor.
float* block_data(const at::Tensor& flat, comm::Slice block) {
  return flat.mutable_data_ptr<float>() + block.begin;
}

/// Updates the weights, the EMA model and the bf16 copy block by block, calling `step(gradients,
/// block, values)`. Returns whether the weights are finite.
template <class RuleStep>
bool update_all(const kernels::WeightUpdate& update, const RuleStep& step,
                const comm::DeferredSum& gradients, std::int64_t first) {
  const float average_weight =
      update.average.defined() ? static_cast<float>(update.average_weight.item<double>()) : 0.0F;
  std::atomic<bool> finite = true;
  parallel_for(0, update.values.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    comm::DeferredSum::Scratch scratch = gradients.make_scratch();
    for (; begin < end; begin += kBlock) {
      const comm::Slice block{begin, std::min(kBlock, end - begin)};
      float* const values = block_data(update.values, block);
      step(gradients.block(first + block.begin, block.size, scratch), block, values);
      if (update.average.defined()) {
        lerp_towards(values, block.size, average_weight, block_data(update.average, block));
      }
      const std::int64_t copied =
          std::clamp<std::int64_t>(update.bf16_copy.numel() - begin, 0, block.size);
      if (copied > 0) {
        float_to_bf16(values, copied,
                      static_cast<std::uint16_t*>(update.bf16_copy.mutable_data_ptr()) + begin);
      }
      if (!all_finite(values, block.size)) finite = false;
    }
  });
  return finite;
}

/// Returns a rule's step for `update_all`. The step keeps a reference to the rule.
auto make_step(const kernels::SgdRule& rule, double learning_rate) {
  const SgdFactors factors{static_cast<float>(learning_rate), static_cast<float>(rule.momentum),
                           static_cast<float>(rule.weight_decay), rule.nesterov};
  return [&rule, factors](const float* gradients, comm::Slice block, float* values) {
    if (factors.momentum == 0) return sgd_update(gradients, block.size, factors, values);
    momentum_update(gradients, block.size, factors, block_data(rule.momentum_buffer, block),
                    values);
  };
}

auto make_step(const kernels::AdamRule& rule, double learning_rate) {
  rule.steps.add_(1);
  const double steps = rule.steps.item<double>();
  const auto as_float = [](double value) { return static_cast<float>(value); };
  const AdamFactors factors{
      .fraction1 = as_float(1 - rule.beta1),
      .fraction2 = as_float(1 - rule.beta2),
      .gradient_decay = as_float(rule.decoupled ? 0 : rule.weight_decay),
      .weight_factor = as_float(rule.decoupled ? 1 - learning_rate * rule.weight_decay : 1),
      .step_size = as_float(learning_rate / (1 - std::pow(rule.beta1, steps))),
      .bias_correction2_sqrt = as_float(std::sqrt(1 - std::pow(rule.beta2, steps))),
      .epsilon = as_float(rule.epsilon)};
  return [&rule, factors](const float* gradients, comm::Slice block, float* values) {
    adam_update(gradients, block.size, factors, block_data(rule.average, block),
                block_data(rule.square_average, block), values);
  };
}

/// Updates the weights with LibTorch's kernels, then the EMA model and the bf16 copy. Adds NaN to
/// `check` if a weight is not finite.
void update_on_gpu(const kernels::WeightUpdate& update, const kernels::UpdateRule& rule) {
  kernels::update_with_libtorch(update, rule);
  const at::Tensor& values = update.values;
  const at::Tensor largest =
      at::linalg_vector_norm(values, std::numeric_limits<double>::infinity());
  update.check.add_(largest * 0);
  update.bf16_copy.copy_(values.narrow(0, 0, update.bf16_copy.numel()));
  if (update.average.defined()) {
    update.average.lerp_(values, update.average_weight.to(values.scalar_type()));
  }
}

/// Returns the names of the state tensors that PyTorch's optimizer keeps per parameter.
std::vector<std::string> optimizer_state_names(const settings::TrainOptions& options) {
  if (options.optimizer != settings::OptimizerName::kSgd) return {"exp_avg", "exp_avg_sq"};
  if (options.sgd_momentum != 0) return {"momentum_buffer"};
  return {};
}

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
    const bool is_averaged = sources[i].is_floating_point() && !models::is_mask(sources[i]);
    Buffers& buffers = is_averaged ? averaged_ : copied_;
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

void EmaModel::update_buffers(const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  if (!averaged_.sources.empty()) {
    // at::_foreach_lerp_ does not accept a scalar on the device.
    const std::vector<at::Tensor> moves = at::_foreach_sub(averaged_.sources, averaged_.averages);
    at::_foreach_mul_(moves, weight.to(values_.scalar_type()));
    at::_foreach_add_(averaged_.averages, moves);
  }
  if (!copied_.sources.empty()) at::_foreach_copy_(copied_.averages, copied_.sources);
}

Optimizer::Optimizer(const settings::TrainOptions& options, const FlatParameters& parameters,
                     std::optional<comm::Slice> slice, EmaModel* ema)
    : options_(options),
      parameters_(parameters),
      slice_(slice.value_or(comm::Slice{0, parameters.values().numel()})),
      ema_(ema) {
  for (const std::string& name : optimizer_state_names(options)) {
    state_.push_back({name, at::zeros_like(parameters.values())});
  }
  for (const ParameterSpan& span : parameters.spans()) {
    const std::int64_t begin = std::max(span.slice.begin, slice_.begin);
    const std::int64_t end =
        std::min(span.slice.begin + span.slice.size, slice_.begin + slice_.size);
    if (begin >= end) continue;
    const comm::Slice overlap{begin, end - begin};
    kernels::WeightUpdate update;
    update.values = overlap.of(parameters.values());
    update.gradients = overlap.of(parameters.gradients());
    update.bf16_copy = parameters.bf16_values_of(overlap);
    if (ema != nullptr) update.average = overlap.of(ema->values());
    const double weight_decay = span.kind.weight_decay.value_or(options.weight_decay);
    spans_.push_back(
        {overlap, span.kind.learning_rate_factor, update, make_rule(overlap, weight_decay)});
  }
}

/// PyTorch's first SGD step copies the gradient to the momentum buffer; here the buffer starts at
/// zero, with the same result. Adam does not support amsgrad.
kernels::UpdateRule Optimizer::make_rule(comm::Slice slice, double weight_decay) const {
  const auto state = [&](std::size_t number) { return slice.of(state_[number].flat); };
  if (options_.optimizer == settings::OptimizerName::kSgd) {
    return kernels::SgdRule{options_.sgd_momentum, weight_decay, options_.nesterov,
                            state_.empty() ? at::Tensor() : state(0)};
  }
  const bool decoupled = options_.optimizer == settings::OptimizerName::kAdamW;
  return kernels::AdamRule{options_.adam_beta1,
                           options_.adam_beta2,
                           options_.adam_epsilon,
                           weight_decay,
                           decoupled,
                           state(0),
                           state(1),
                           at::zeros({}, parameters_.values().options())};
}

const char* Optimizer::name() const {
  static constexpr std::array kNames{"sgd", "adam", "adamw"};
  return enum_name(kNames, options_.optimizer);
}

void Optimizer::restored(std::int64_t steps) {
  for (const UpdateSpan& span : spans_) {
    const auto* adam = std::get_if<kernels::AdamRule>(&span.rule);
    if (adam != nullptr) adam->steps.fill_(static_cast<double>(steps));
  }
}

bool Optimizer::update(comm::GradientAverager& averager, const at::Tensor& rates,
                       const at::Tensor& check) {
  if (clips() && !clip_gradients(check)) return false;
  const bool has_kernel = kernels::are_used(parameters_.values().device());
  const bool on_host = updates_on_host();
  const at::Tensor typed_rates = has_kernel ? rates.to(at::kFloat) : rates;
  const auto sum = on_host ? averager.deferred_sum() : comm::DeferredSum{};
  bool finite = true;
  for (const UpdateSpan& span : spans_) {
    kernels::WeightUpdate update = span.update;
    update.learning_rate = typed_rates.select(0, 0);
    if (span.learning_rate_factor != 1) {
      update.learning_rate = update.learning_rate * span.learning_rate_factor;
    }
    if (ema_ != nullptr) update.average_weight = typed_rates.select(0, 1);
    update.check = check;
    if (has_kernel) {
      kernels::update_weights(update, span.rule);
    } else if (on_host) {
      const std::int64_t first = span.slice.begin - slice_.begin;
      finite = update_on_host(update, span.rule, sum, first) && finite;
    } else {
      update_on_gpu(update, span.rule);
    }
  }
  if (ema_ != nullptr) ema_->update_buffers(rates.select(0, 1));
  return finite;
}

/// Clips like torch.nn.utils.clip_grad_norm_, without reading the norm back from a GPU. The return
/// value and `check` have the same meaning as in `update`.
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

bool update_on_host(const kernels::WeightUpdate& update, const kernels::UpdateRule& rule,
                    const comm::DeferredSum& gradients, std::int64_t first) {
  const double learning_rate = update.learning_rate.item<double>();
  const auto update_with = [&](const auto& typed_rule) {
    return update_all(update, make_step(typed_rule, learning_rate), gradients, first);
  };
  return std::visit(update_with, rule);
}

}  // namespace mnist_train::train
