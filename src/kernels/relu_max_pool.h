#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace mnist_train::kernels {

/// Returns whether the kernels can compute `max_pool2d(relu(x + bias), 2)` of x [N,C,H,W] and bias
/// [C], which may be undefined. They compute f32 and bf16, and no images without a window.
bool can_relu_max_pool(const at::Tensor& x, const at::Tensor& bias);

/// Writes `max_pool2d(relu(x + bias), 2)` of x [N,C,H,W] to `out`, and which of its four places
/// each value comes from (see gpu/relu_max_pool.cu) to `choice`, u8. All of four dimensions are
/// channels last, but `out` may be contiguous; `bias` [C] may be undefined.
void relu_max_pool(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& out,
                   const at::Tensor& choice);

/// Writes the gradient of x to `into` [N,C,H,W] and that of the bias to `bias_gradient` [C], which
/// may be undefined, from that of `out`, which may be contiguous too, and from `choice`.
void relu_max_pool_backward(const at::Tensor& gradient, const at::Tensor& choice,
                            const at::Tensor& into, const at::Tensor& bias_gradient);

/// Computes small known cases by the kernels on the device and by LibTorch on the host. Returns
/// what differs; nothing where they agree.
std::string check_relu_max_pool(at::Device device);

}  // namespace mnist_train::kernels
