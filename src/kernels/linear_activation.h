#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace mnist_train::kernels {

/// A function behind a linear layer whose derivative is computed from what it gives.
enum class LinearFunction { kRelu, kTanh };

/// Returns whether the kernel can compute the gradients behind a linear layer with this input
/// [N,I], weight [O,I] and bias [O], which may be undefined. It computes f32 and bf16, where all
/// are of one type.
bool can_linear_activation(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// The gradients of a linear layer with a function behind it.
struct LinearActivationGradients {
  at::Tensor linear;  // [N,O], that of what the linear layer gives
  at::Tensor bias;    // [O], that of the layer's bias
};

/// Returns the gradients of the linear layer from what the function behind it gave, [N,O], and from
/// the gradient of that. All are contiguous.
LinearActivationGradients linear_activation_gradients(LinearFunction function, const at::Tensor& y,
                                                      const at::Tensor& gradient);

/// Computes small known cases by the kernel on the device and by LibTorch on the host. Returns what
/// differs; nothing where they agree.
std::string check_linear_activation(at::Device device);

}  // namespace mnist_train::kernels
