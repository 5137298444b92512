#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <functional>

#include "cpu_kernels/kernels.h"
#include "kernels/operations.h"
#include "settings/model_options.h"

/// Activation functions, and layer operations that LibTorch does not have or computes with several
/// GPU kernels.
namespace mnist_train::models {

/// An activation function in cpu_kernels/ and in LibTorch.
struct ActivationFunction {
  cpu_kernels::ActivationSpec engine;
  std::function<at::Tensor(const at::Tensor& x)> libtorch;
};
ActivationFunction activation_function(const settings::ActivationLayer& layer);

/// Returns x [N,...] with each element set to 0 with probability `p` and the others divided by 1 -
/// p. The decision is a hash of the sample's seed (`seeds` [N] i64), the dropout layer's index
/// `layer` and the element's index, so it is independent of batch, device and layout. cpu_kernels/
/// makes the same decisions.
at::Tensor hashed_dropout(const at::Tensor& x, const at::Tensor& seeds, std::int64_t layer,
                          double p);

/// Returns the output of a linear layer with an activation. Values and gradients match LibTorch's
/// up to rounding; on a GPU one kernel computes the gradients of activation and bias.
at::Tensor linear_activation(torch::nn::LinearImpl& layer, kernels::LinearFunction function,
                             const at::Tensor& x);

/// Returns the output of a layer for images [N,C,H,W], with and without its bias. On a GPU kernels
/// compute depthwise convolutions, for which cuDNN compiles code in every run.
at::Tensor convolve(torch::nn::Conv2dImpl& layer, const at::Tensor& images);
at::Tensor convolve_without_bias(const torch::nn::Conv2dImpl& layer, const at::Tensor& images);

/// Returns `max_pool2d(relu(x + bias), 2)` [N,C,H/2,W/2] of x [N,C,H,W] and bias [C], which may be
/// undefined; an odd last row or column is dropped. With `flatten`, returns vectors [N,C*H/2*W/2].
/// Values and gradients match LibTorch's, including NaN, except that zeros are always +0. On a GPU
/// one kernel, in fp32 or bf16, does it all and flattens without a copy.
at::Tensor relu_max_pool(const at::Tensor& x, const at::Tensor& bias = {}, bool flatten = false);

/// Returns `relu_max_pool(layer(images), {}, flatten)` of images [N,C,H,W]. On a GPU adding the
/// bias is fused with ReLU and pooling.
at::Tensor convolve_relu_max_pool(torch::nn::Conv2dImpl& layer, const at::Tensor& images,
                                  bool flatten = false);

}  // namespace mnist_train::models
