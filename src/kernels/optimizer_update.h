#pragma once

#include <ATen/core/Tensor.h>

#include <variant>

namespace mnist_train::kernels {

/// The weights that a step updates, all on one device; tensors are contiguous, and may be views
/// without alignment.
struct WeightUpdate {
  at::Tensor values;          // [n] f32
  at::Tensor gradients;       // [n] f32
  at::Tensor learning_rate;   // scalar f32, or f64 on a CPU
  at::Tensor gradient_scale;  // scalar f32, see `clipping_scale`; undefined without clipping
  at::Tensor bf16_copy;       // [h] bf16 of the first h <= n values; may be undefined
  at::Tensor average;         // [n] f32, moving average of the values; may be undefined
  at::Tensor average_weight;  // scalar of `learning_rate`'s type: of the new values
  at::Tensor check{};         // scalar f32, set to NaN if values are not finite; may be undefined
};

/// torch.optim.SGD with momentum, Nesterov and weight decay (dampening 0).
struct SgdRule {
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  at::Tensor momentum_buffer;  // [n] f32; undefined without momentum
};

/// torch.optim.Adam, or AdamW if the weight decay is `decoupled` from the gradients.
struct AdamRule {
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  bool decoupled = false;
  at::Tensor average;         // [n] f32, of the gradients
  at::Tensor square_average;  // [n] f32
  at::Tensor steps;           // scalar f32: number of earlier steps, which the update increments
};

using UpdateRule = std::variant<SgdRule, AdamRule>;

/// Takes an optimizer step in one launch: reads gradients, writes weights, optimizer state, bf16
/// copy and moving average, and scales the gradients in place. See gpu/optimizer_update.cu.
void update_weights(const WeightUpdate& update, const UpdateRule& rule);

/// Takes the same step by LibTorch's fused optimizers, of weights and optimizer state alone.
/// Ignores the gradients' scale.
void update_by_libtorch(const WeightUpdate& update, const UpdateRule& rule);

/// Returns the factor that limits the norm of gradients [n] f32 to `max_norm`: a scalar f32 on
/// their device, or NaN, which updates nothing, if the norm is not finite. See
/// gpu/optimizer_update.cu.
at::Tensor clipping_scale(const at::Tensor& gradients, double max_norm);

}  // namespace mnist_train::kernels
