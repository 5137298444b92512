#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>

namespace mnist_train::models {

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
