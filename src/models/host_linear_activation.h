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

/// Does on a CPU what kernels::linear_activation_gradients does on a GPU: writes the gradient of
/// what the linear layer gave to `linear` [N,O], and returns that of the bias [O], in `bias_place`
/// where that is defined. Without a function `gradient` is `linear`, and only the bias's is summed.
at::Tensor host_linear_activation_gradients(std::optional<kernels::LinearFunction> function,
                                            const at::Tensor& y, const at::Tensor& gradient,
                                            const at::Tensor& linear,
                                            const at::Tensor& bias_place = {});

}  // namespace mnist_train::models
