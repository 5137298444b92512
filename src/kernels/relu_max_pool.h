#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::kernels {

/// Returns whether the kernels can compute `max_pool2d(relu(x + bias), 2)` of x [N,C,H,W] and bias
/// [C], which may be undefined: f32 or bf16, and images of at least 2x2.
bool can_relu_max_pool(const at::Tensor& x, const at::Tensor& bias);

/// Writes `max_pool2d(relu(x + bias), 2)` of x [N,C,H,W] to `out`, and the position of each maximum
/// in its window (see gpu/relu_max_pool.cu) to `choice`, u8. All are channels last, but `out` may
/// be contiguous; `bias` [C] may be undefined.
void relu_max_pool(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out,
                   const at::Tensor& choice);

/// Writes the gradients of x to `into` [N,C,H,W] and of the bias to `bias_gradient` [C], which may
/// be undefined, for the gradient of `out`, which may be contiguous too, and `choice`.
void relu_max_pool_backward(const at::Tensor& gradient, const at::Tensor& choice,
                            const at::Tensor& into, const at::Tensor& bias_gradient);

}  // namespace mnist_train::kernels
