#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

#include <algorithm>
#include <vector>

#include "kernels/launch.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

namespace {

constexpr std::int64_t kPack = 4;      // elements that a thread processes at once
constexpr unsigned kMaxBlocks = 1024;  // enough to fill any GPU

unsigned grid_blocks(const at::Tensor& flat) {
  return std::clamp(blocks_for(ceil_divide(flat.numel(), kPack)), 1U, kMaxBlocks);
}

/// Launches a kernel with the arguments common to all rules, followed by those of the rule.
template <class... Arguments>
void launch_update(const char* name, const WeightUpdate& update, const Arguments&... extra) {
  const std::int64_t copies = update.bf16_copy.defined() ? update.bf16_copy.numel() : 0;
  launch(name, {grid_blocks(update.values), kThreads}, update.values, update.gradients,
         update.values.numel(), update.learning_rate, copies > 0 ? update.bf16_copy : at::Tensor(),
         copies, update.average, update.average_weight, update.check, extra...);
}

void launch_rule(const WeightUpdate& update, const SgdRule& rule) {
  launch_update("update_by_sgd", update, rule.momentum_buffer, rule.momentum, rule.weight_decay,
                rule.nesterov);
}

void launch_rule(const WeightUpdate& update, const AdamRule& rule) {
  launch_update("update_by_adam", update, rule.average, rule.square_average, 1 - rule.beta1,
                1 - rule.beta2, rule.epsilon, rule.weight_decay, rule.decoupled, rule.steps,
                arrival_counters());
}

void step_with_libtorch(const WeightUpdate& update, const SgdRule& rule) {
  std::vector<at::Tensor> buffers;
  if (rule.momentum_buffer.defined()) buffers.push_back(rule.momentum_buffer);
  at::_fused_sgd_({update.values}, {update.gradients}, buffers, rule.weight_decay, rule.momentum,
                  update.learning_rate, /*dampening=*/0, rule.nesterov, /*maximize=*/false,
                  /*is_first_step=*/false);
}

void step_with_libtorch(const WeightUpdate& update, const AdamRule& rule) {
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

}  // namespace

void update_weights(const WeightUpdate& update, const UpdateRule& rule) {
  std::visit([&](const auto& concrete) { launch_rule(update, concrete); }, rule);
}

void update_with_libtorch(const WeightUpdate& update, const UpdateRule& rule) {
  std::visit([&](const auto& concrete) { step_with_libtorch(update, concrete); }, rule);
}

}  // namespace mnist_train::kernels
