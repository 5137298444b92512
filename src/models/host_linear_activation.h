#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/linear_activation.h"

namespace mnist_train::models {

/// Returns whether the functions below compute what is behind a linear layer with this input [N,I],
/// weight [O,I] and bias [O]: f32 and bf16 on a CPU, where all are of one type.
bool can_host_linear_activation(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& bias);

/// Replaces the values, dense f32 or bf16, by their hyperbolic tangents, which are right to the
/// last digit but one.
void host_tanh(const at::Tensor& values);

/// Does on a CPU what kernels::linear_activation_gradients does on a GPU. Without a function
/// `gradient` is that of the linear layer, and only the bias's is summed.
kernels::LinearActivationGradients host_linear_activation_gradients(
    std::optional<kernels::LinearFunction> function, const at::Tensor& y,
    const at::Tensor& gradient);

}  // namespace mnist_train::models
