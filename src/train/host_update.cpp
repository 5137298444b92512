#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <variant>
#include <vector>

#include "base/cpu.h"
#include "base/parallel.h"
#include "train/optimizer.h"

namespace mnist_train::train {

namespace {

constexpr std::int64_t kBlock = comm::GradientSum::kBlock;
constexpr std::int64_t kGrain = 32 * kBlock;  // elements; the least work of a thread

/// Moves `to` by `weight` of its distance from `from`.
MNIST_TRAIN_VECTORIZED void approach(const float* __restrict from, std::int64_t count, float weight,
                                     float* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += weight * (from[i] - to[i]);
}

struct SgdFactors {
  float rate;
  float momentum;
  float decay;
  bool nesterov;
};

MNIST_TRAIN_VECTORIZED void descend(const float* __restrict gradients, std::int64_t count,
                                    SgdFactors factors, float* __restrict values) {
  for (std::int64_t i = 0; i < count; ++i) {
    values[i] -= factors.rate * (gradients[i] + factors.decay * values[i]);
  }
}

MNIST_TRAIN_VECTORIZED void descend_with_momentum(const float* __restrict gradients,
                                                  std::int64_t count, SgdFactors factors,
                                                  float* __restrict buffer,
                                                  float* __restrict values) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float gradient = gradients[i] + factors.decay * values[i];
    buffer[i] = factors.momentum * buffer[i] + gradient;
    values[i] -=
        factors.rate * (factors.nesterov ? gradient + factors.momentum * buffer[i] : buffer[i]);
  }
}

struct AdamFactors {
  float fraction1;       // 1 - beta1
  float fraction2;       // 1 - beta2
  float gradient_decay;  // 0 if it is decoupled
  float kept;            // of the values: 1 - learning rate * decay if it is decoupled, else 1
  float step_size;       // learning rate / (1 - beta1^steps)
  float root;            // of 1 - beta2^steps
  float epsilon;
};

MNIST_TRAIN_VECTORIZED void descend_adaptively(const float* __restrict gradients,
                                               std::int64_t count, AdamFactors factors,
                                               float* __restrict average, float* __restrict squares,
                                               float* __restrict values) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float gradient = gradients[i] + factors.gradient_decay * values[i];
    average[i] += factors.fraction1 * (gradient - average[i]);
    squares[i] += factors.fraction2 * (gradient * gradient - squares[i]);
    values[i] =
        factors.kept * values[i] -
        factors.step_size * average[i] / (std::sqrt(squares[i]) / factors.root + factors.epsilon);
  }
}

/// Returns the block of a flat tensor.
float* part_of(const at::Tensor& flat, comm::Slice block) {
  return flat.mutable_data_ptr<float>() + block.begin;
}

/// Updates the weights block by block, by `step(gradients, block, values)`, with the EMA model and
/// the bf16 copy. Returns whether the weights are finite.
template <class RuleStep>
bool update_all(const kernels::WeightUpdate& update, const RuleStep& step,
                const comm::GradientSum& gradients, std::int64_t first) {
  const float average_weight =
      update.average.defined() ? static_cast<float>(update.average_weight.item<double>()) : 0.0F;
  std::atomic<bool> finite = true;
  parallel_for(0, update.values.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    comm::GradientSum::Scratch scratch = gradients.make_scratch();
    for (; begin < end; begin += kBlock) {
      const comm::Slice block{begin, std::min(kBlock, end - begin)};
      float* const values = part_of(update.values, block);
      step(gradients.block(first + block.begin, block.size, scratch), block, values);
      if (update.average.defined()) {
        approach(values, block.size, average_weight, part_of(update.average, block));
      }
      const std::int64_t copied =
          std::clamp<std::int64_t>(update.bf16_copy.numel() - begin, 0, block.size);
      if (copied > 0) {
        float_to_bf16(values, copied,
                      static_cast<std::uint16_t*>(update.bf16_copy.mutable_data_ptr()) + begin);
      }
      if (!comm::all_finite(values, block.size)) finite = false;
    }
  });
  return finite;
}

bool step_by_sgd(const kernels::WeightUpdate& update, const kernels::SgdRule& rule,
                 double learning_rate, const comm::GradientSum& sum, std::int64_t first) {
  const SgdFactors factors{static_cast<float>(learning_rate), static_cast<float>(rule.momentum),
                           static_cast<float>(rule.weight_decay), rule.nesterov};
  const auto step = [&](const float* gradients, comm::Slice block, float* values) {
    if (factors.momentum == 0) return descend(gradients, block.size, factors, values);
    descend_with_momentum(gradients, block.size, factors, part_of(rule.momentum_buffer, block),
                          values);
  };
  return update_all(update, step, sum, first);
}

bool step_by_adam(const kernels::WeightUpdate& update, const kernels::AdamRule& rule,
                  double learning_rate, const comm::GradientSum& sum, std::int64_t first) {
  rule.steps.add_(1);
  const double steps = rule.steps.item<double>();
  const auto as_float = [](double value) { return static_cast<float>(value); };
  const AdamFactors factors{
      .fraction1 = as_float(1 - rule.beta1),
      .fraction2 = as_float(1 - rule.beta2),
      .gradient_decay = as_float(rule.decoupled ? 0 : rule.weight_decay),
      .kept = as_float(rule.decoupled ? 1 - learning_rate * rule.weight_decay : 1),
      .step_size = as_float(learning_rate / (1 - std::pow(rule.beta1, steps))),
      .root = as_float(std::sqrt(1 - std::pow(rule.beta2, steps))),
      .epsilon = as_float(rule.epsilon)};
  const auto step = [&](const float* gradients, comm::Slice block, float* values) {
    descend_adaptively(gradients, block.size, factors, part_of(rule.average, block),
                       part_of(rule.square_average, block), values);
  };
  return update_all(update, step, sum, first);
}

}  // namespace

bool update_on_host(const kernels::WeightUpdate& update, const kernels::UpdateRule& rule,
                    const comm::GradientSum& gradients, std::int64_t first) {
  const double learning_rate = update.learning_rate.item<double>();
  if (const auto* sgd = std::get_if<kernels::SgdRule>(&rule)) {
    return step_by_sgd(update, *sgd, learning_rate, gradients, first);
  }
  return step_by_adam(update, std::get<kernels::AdamRule>(rule), learning_rate, gradients, first);
}

}  // namespace mnist_train::train
