#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

#include "kernels/operations.h"

/// Operations of layers that LibTorch lacks, or computes by several kernels of a GPU.
namespace mnist_train::models {

/// Returns x [N,...] with each element set to 0 with probability `p` and the others divided by 1 -
/// p. The decision is a hash of the sample's seed (`seeds` [N] i64), of `layer`, the index of the
/// dropout layer, and of the element's index, so it does not depend on batch, device or layout.
/// cpu_kernels/ makes the same decisions.
at::Tensor hashed_dropout(const at::Tensor& x, const at::Tensor& seeds, std::int64_t layer,
                          double p);

/// Returns the output of a linear layer with an activation. Values and gradients are LibTorch's up
/// to rounding; on a GPU one kernel computes the gradients of the activation and of the bias.
at::Tensor linear_activation(torch::nn::LinearImpl& layer, kernels::LinearFunction function,
                             const at::Tensor& x);

/// Returns the output of a layer of images [N,C,H,W] before its bias is added.
at::Tensor convolve_without_bias(const torch::nn::Conv2dImpl& layer, const at::Tensor& images);

/// Returns `max_pool2d(relu(x + bias), 2)` [N,C,H/2,W/2] of x [N,C,H,W] and bias [C], which may be
/// undefined, without an odd last row or column; with `flatten` as vectors [N,C*H/2*W/2]. Values
/// and gradients are LibTorch's, NaN included, but zeros are always +0. On a GPU one kernel does it
/// in fp32 and bf16, and flattens without a copy.
at::Tensor relu_max_pool(const at::Tensor& x, const at::Tensor& bias = {}, bool flatten = false);

/// Returns `relu_max_pool(layer(images), {}, flatten)` of images [N,C,H,W]. On a GPU the bias is
/// added together with ReLU and pooling.
at::Tensor convolve_relu_max_pool(torch::nn::Conv2dImpl& layer, const at::Tensor& images,
                                  bool flatten = false);

}  // namespace mnist_train::models
