#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/operations.h"

namespace mnist_train::models {

// Linear layers and their activations on a CPU. All tensors of a call are f32, or all bf16.

// The matrix products use custom kernels on processors with AVX512-BF16, otherwise LibTorch.

/// Returns whether this processor has the instructions for the custom kernels. Their results for a
/// sample do not depend on the other samples, to the last bit.
bool has_own_host_linear();

/// Returns x [N,I] times the transpose of weight [O,I], plus bias [O]: [N,O]; with `relu` its ReLU,
/// which keeps NaNs.
at::Tensor host_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       bool relu);
/// Returns the gradient [N,I] of x for the gradient of the result [N,O].
at::Tensor host_linear_input_gradient(const at::Tensor& gradient, const at::Tensor& weight);
/// Returns the gradient [O,I] of the weight for the gradient of the result [N,O]. Custom kernels
/// write it to `place`, if defined, and return a view of it.
at::Tensor host_linear_weight_gradient(const at::Tensor& gradient, const at::Tensor& x,
                                       const at::Tensor& place = {});

/// Returns whether the functions below support a linear layer with this input [N,I], weight [O,I]
/// and bias [O]: f32 and bf16 on a CPU, all of one type.
bool can_host_linear_activation(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& bias);

/// Replaces the values, dense f32 or bf16, by their hyperbolic tangents, with an error below 2.5
/// ulp.
void host_tanh(const at::Tensor& values);

/// Does on a CPU what kernels::linear_activation_gradients does on a GPU: writes the gradient of
/// the linear layer's output to `linear` [N,O], and returns that of the bias [O], in `bias_place`
/// if defined. Without a function, `gradient` is `linear`, and only the bias gradient is computed.
at::Tensor host_linear_activation_gradients(std::optional<kernels::LinearFunction> function,
                                            const at::Tensor& y, const at::Tensor& gradient,
                                            const at::Tensor& linear,
                                            const at::Tensor& bias_place = {});

}  // namespace mnist_train::models
