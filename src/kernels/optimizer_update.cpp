#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <vector>

#include "kernels/launch.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

namespace {

constexpr std::int64_t kPack = 4;       // elements that a thread processes at once
constexpr std::int64_t kKnown = 1003;   // weights in a known case
constexpr unsigned kMostBlocks = 1024;  // enough to fill any GPU

unsigned blocks_of(const at::Tensor& flat) {
  return std::clamp(blocks_for(ceil_divide(flat.numel(), kPack)), 1U, kMostBlocks);
}

/// Launches a kernel with the arguments shared by all rules, followed by its own.
template <class... Arguments>
void launch_update(const char* name, const WeightUpdate& update, const Arguments&... own) {
  const std::int64_t copied = update.bf16_copy.defined() ? update.bf16_copy.numel() : 0;
  launch(name, {blocks_of(update.values), kThreads}, update.values, update.gradients,
         update.values.numel(), update.learning_rate, update.gradient_scale,
         copied > 0 ? update.bf16_copy : at::Tensor(), copied, update.average,
         update.average_weight, update.check, own...);
}

void launch_rule(const WeightUpdate& update, const SgdRule& rule) {
  launch_update("update_by_sgd", update, rule.momentum_buffer, rule.momentum, rule.weight_decay,
                rule.nesterov);
}

void launch_rule(const WeightUpdate& update, const AdamRule& rule) {
  launch_update("update_by_adam", update, rule.average, rule.square_average, 1 - rule.beta1,
                1 - rule.beta2, rule.epsilon, rule.weight_decay, rule.decoupled, rule.steps,
                arrived_blocks());
}

void step_by_libtorch(const WeightUpdate& update, const SgdRule& rule) {
  std::vector<at::Tensor> buffers;
  if (rule.momentum_buffer.defined()) buffers.push_back(rule.momentum_buffer);
  at::_fused_sgd_({update.values}, {update.gradients}, buffers, rule.weight_decay, rule.momentum,
                  update.learning_rate, /*dampening=*/0, rule.nesterov, /*maximize=*/false,
                  /*is_first_step=*/false);
}

void step_by_libtorch(const WeightUpdate& update, const AdamRule& rule) {
  rule.steps.add_(1);
  const auto step = [&](const auto& kernel) {
    kernel(at::TensorList(update.values), at::TensorList(update.gradients),
           at::TensorList(rule.average), at::TensorList(rule.square_average), at::TensorList(),
           at::TensorList(rule.steps), update.learning_rate, rule.beta1, rule.beta2,
           rule.weight_decay, rule.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  };
  if (rule.decoupled) {
    step([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    step([](auto&&... arguments) { at::_fused_adam_(arguments...); });
  }
}

/// Returns the optimizer's state tensors, which may be undefined.
std::vector<at::Tensor*> state_of(SgdRule& rule) { return {&rule.momentum_buffer}; }
std::vector<at::Tensor*> state_of(AdamRule& rule) {
  return {&rule.average, &rule.square_average, &rule.steps};
}

/// Compares one kernel step with a LibTorch step on the host. `surrounded` adds all optional parts.
template <class Rule>
void compare(Agreement& agreement, Rule rule, bool surrounded) {
  constexpr std::int64_t kCopied = 509;
  constexpr double kMaxNorm = 2.5;
  constexpr double kAverageWeight = 0.1;
  const at::Tensor known = known_values({3, kKnown});
  WeightUpdate host{known[0], known[1].clone(), at::scalar_tensor(0.125), {}, {}, {}, {}};
  WeightUpdate own;
  own.values = agreement.here(host.values);
  own.gradients = agreement.here(host.gradients);
  own.learning_rate = agreement.here(host.learning_rate);
  Rule own_rule = rule;
  for (at::Tensor* state : state_of(own_rule)) *state = agreement.here(*state);
  if (surrounded) {
    own.gradient_scale = clipping_scale(own.gradients, kMaxNorm);
    own.bf16_copy = at::empty({kCopied}, own.values.options().dtype(at::kBFloat16));
    own.average = agreement.here(known[2]);
    own.average_weight = agreement.here(at::scalar_tensor(kAverageWeight));
    const at::Tensor norm = at::linalg_vector_norm(host.gradients, 2);
    host.gradients.mul_((kMaxNorm / (norm + 1e-6)).clamp_max(1.0));
  }
  update_weights(own, own_rule);
  step_by_libtorch(host, rule);
  agreement.add("weights", own.values, host.values, at::kFloat);
  agreement.add("gradients", own.gradients, host.gradients, at::kFloat);
  const std::vector<at::Tensor*> expected = state_of(rule);
  const std::vector<at::Tensor*> state = state_of(own_rule);
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (state[i]->defined()) agreement.add("state", *state[i], *expected[i], at::kFloat);
  }
  if (!surrounded) return;
  agreement.add("bf16 copy", own.bf16_copy, host.values.narrow(0, 0, kCopied), at::kBFloat16);
  agreement.add("average", own.average, known[2].lerp(host.values, kAverageWeight), at::kFloat);
}

}  // namespace

void update_weights(const WeightUpdate& update, const UpdateRule& rule) {
  std::visit([&](const auto& taken) { launch_rule(update, taken); }, rule);
}

void update_by_libtorch(const WeightUpdate& update, const UpdateRule& rule) {
  std::visit([&](const auto& taken) { step_by_libtorch(update, taken); }, rule);
}

at::Tensor clipping_scale(const at::Tensor& gradients, double max_norm) {
  const unsigned blocks = blocks_of(gradients);
  at::Tensor scale = at::empty({}, gradients.options());
  const at::Tensor partial_sums = at::empty({blocks}, gradients.options());
  launch("clipping_scale", {blocks, kThreads}, gradients, gradients.numel(), max_norm, scale,
         partial_sums, arrived_blocks());
  return scale;
}

void check_optimizer_update(Agreement& agreement) {
  for (const bool surrounded : {false, true}) {
    const auto state = [] { return known_values({kKnown}).mul(0.1); };
    compare(agreement, SgdRule{}, surrounded);
    compare(agreement, SgdRule{0.9, 0.01, /*nesterov=*/true, state()}, surrounded);
    for (const bool decoupled : {false, true}) {
      compare(agreement,
              AdamRule{0.9, 0.999, 1e-8, 0.01, decoupled, state(), state().abs(),
                       at::scalar_tensor(3.0)},
              surrounded);
    }
  }
}

}  // namespace mnist_train::kernels
