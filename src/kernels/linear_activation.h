#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::kernels {

/// Activations after a linear layer whose derivative is a function of their output.
enum class LinearFunction { kRelu, kTanh };

/// Returns whether the kernel can compute the gradients of a linear layer with this input [N,I],
/// weight [O,I] and bias [O] and an activation: all f32 or all bf16, and the bias defined.
bool can_linear_activation(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// The gradients of a linear layer with an activation.
struct LinearActivationGradients {
  at::Tensor linear;  // [N,O], of the output of the linear layer
  at::Tensor bias;    // [O]
};

/// Returns the gradients of the linear layer for the output of the activation, y [N,O], and the
/// gradient of y. All are contiguous.
LinearActivationGradients linear_activation_gradients(LinearFunction function, const at::Tensor& y,
                                                      const at::Tensor& gradient);

}  // namespace mnist_train::kernels
