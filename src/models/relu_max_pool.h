#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>

#include "models/gradient_places.h"

namespace mnist_train::models {

/// Returns `max_pool2d(relu(x + bias), 2)` [N,C,H/2,W/2] of x [N,C,H,W] and bias [C], which may be
/// undefined, without an odd last row or column; with `flatten` as vectors [N,C*H/2*W/2]. Values
/// and gradients are LibTorch's, NaN included, but zeros are always +0. One kernel computes ReLU
/// and pooling in fp32 and bf16 and returns channels last images; on a GPU it adds the bias and
/// flattens without a copy, too.
at::Tensor relu_max_pool(const at::Tensor& x, const at::Tensor& bias = {}, bool flatten = false);

/// Returns `relu_max_pool(layer(images), {}, flatten)` of images [N,C,H,W]. In bf16 and fp32 on a
/// CPU with the instructions for it, a layer with a square kernel, stride 1 and no padding is fused
/// with ReLU, pooling and flattening (`PooledConvolutionPasses`), with fp32 sums like LibTorch's,
/// and gradients are written to `places`. On a GPU the bias is added together with ReLU and
/// pooling.
at::Tensor convolve_relu_max_pool(torch::nn::Conv2dImpl& layer, const at::Tensor& images,
                                  GradientPlaces& places, bool flatten = false);
/// Returns whether custom CPU kernels compute this layer, for all images at least as large as its
/// kernel.
bool has_host_convolve_relu_max_pool(const torch::nn::Conv2dImpl& layer);

}  // namespace mnist_train::models
