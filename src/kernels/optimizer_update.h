#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <variant>

namespace mnist_train::kernels {

/// The weights that a step updates, all on one device; tensors are contiguous and may be views that
/// begin anywhere.
struct WeightUpdate {
  at::Tensor values;          // [n] f32
  at::Tensor gradients;       // [n] f32
  at::Tensor learning_rate;   // scalar f32, on a CPU also f64
  at::Tensor gradient_scale;  // scalar f32, see `clipping_scale`; undefined without clipping
  at::Tensor bf16_copy;       // [h] bf16 of the first h <= n values; undefined where there is none
  at::Tensor average;         // [n] f32, which follows the values; undefined where there is none
  at::Tensor average_weight;  // scalar of `learning_rate`'s type: of the values in the average
  at::Tensor check{};         // scalar f32, may be undefined: NaN once values are not finite
};

/// torch.optim.SGD with momentum, Nesterov and weight decay (dampening 0).
struct SgdRule {
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  at::Tensor momentum_buffer;  // [n] f32; undefined where `momentum` is 0
};

/// torch.optim.Adam, or AdamW where the weight decay is `decoupled` from the gradients.
struct AdamRule {
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  bool decoupled = false;
  at::Tensor average;         // [n] f32, of the gradients
  at::Tensor square_average;  // [n] f32
  at::Tensor steps;           // scalar f32: how many were taken, to which the update adds 1
};

using UpdateRule = std::variant<SgdRule, AdamRule>;

/// Takes an optimizer's step in one launch: reads gradients, writes weights, the optimizer's state,
/// the bf16 copy and the average of the weights. Gradients that are scaled down are so afterwards,
/// too. See gpu/optimizer_update.cu.
void update_weights(const WeightUpdate& update, const UpdateRule& rule);

/// Returns by what to multiply gradients [n] f32 so that their norm is at most `max_norm`: a scalar
/// f32 on their device, NaN if the norm is not finite, by which nothing is updated. See
/// gpu/gradient_norm.cu.
at::Tensor clipping_scale(const at::Tensor& gradients, double max_norm);

/// Computes small known cases by the kernels on the device and by LibTorch on the host. Returns
/// what differs; nothing where they agree.
std::string check_optimizer_update(at::Device device);

}  // namespace mnist_train::kernels
