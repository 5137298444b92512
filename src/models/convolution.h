#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>

namespace mnist_train::models {

/// Returns whether `convolve_without_bias` of images [N,C,H,W] plus the bias is the layer's output:
/// whether the layer pads with zeros, and the images are a batch.
bool can_convolve_without_bias(const torch::nn::Conv2dImpl& layer, const at::Tensor& images);

/// Returns the layer's output before its bias is added, for an operation behind it that takes the
/// bias.
at::Tensor convolve_without_bias(const torch::nn::Conv2dImpl& layer, const at::Tensor& images);

}  // namespace mnist_train::models
