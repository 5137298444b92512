#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>

#include "models/gradient_places.h"

namespace mnist_train::models {

/// Returns `max_pool2d(relu(x), 2)` [N,C,H/2,W/2] of x [N,C,H,W], without an odd last row or
/// column. Numbers and gradients are LibTorch's, NaN included, but zeros are always +0. One kernel
/// for fp32 and bf16 does both operations, and the result is channels last.
at::Tensor relu_max_pool(const at::Tensor& x);
/// Returns `relu_max_pool(x)` as vectors [N,C*H/2*W/2]. On a GPU they need no copy.
at::Tensor relu_max_pool_flatten(const at::Tensor& x);

/// Returns `relu_max_pool(x + bias)` of x [N,C,H,W] and bias [C], which may be undefined. On a GPU
/// one kernel does all of it, and its result is contiguous where `planar` wants it.
at::Tensor bias_relu_max_pool(const at::Tensor& x, const at::Tensor& bias, bool planar = false);

/// Returns `relu_max_pool(layer(images))` of images [N,C,H,W]. In bf16 and fp32 on a CPU with the
/// instructions for it, and for a layer with a square kernel, stride 1 and no padding, kernels of
/// our own do all three operations (`PooledConvolutionPasses`); sums are fp32, as in LibTorch's
/// kernels, which all other cases use. Our own write their gradients to `places`. On a GPU the bias
/// is added together with ReLU and pooling.
at::Tensor convolve_relu_max_pool(torch::nn::Conv2d& layer, const at::Tensor& images,
                                  GradientPlaces& places);
/// Returns `convolve_relu_max_pool(layer, images)` as vectors [N,C*H/2*W/2], which one kernel makes
/// without a copy.
at::Tensor convolve_relu_max_pool_flatten(torch::nn::Conv2d& layer, const at::Tensor& images,
                                          GradientPlaces& places);
/// Returns whether kernels of our own for CPUs compute this layer, for all images that are at least
/// as large as its kernel.
bool has_host_convolve_relu_max_pool(const torch::nn::Conv2dImpl& layer);

}  // namespace mnist_train::models
