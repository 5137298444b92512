#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/functional/conv.h>
#include <torch/nn/modules/conv.h>

#include <variant>

namespace mnist_train::models {

// For operations that add the bias of a convolution themselves.

/// Returns whether the layer's output is `convolve_without_bias` plus the bias: for batches
/// [N,C,H,W] and zero padding.
inline bool can_convolve_without_bias(const torch::nn::Conv2dImpl& layer,
                                      const at::Tensor& images) {
  return images.dim() == 4 &&
         std::holds_alternative<torch::enumtype::kZeros>(layer.options.padding_mode());
}

inline at::Tensor convolve_without_bias(const torch::nn::Conv2dImpl& layer,
                                        const at::Tensor& images) {
  const auto& options = layer.options;
  return torch::nn::functional::detail::conv2d(images, layer.weight, /*bias=*/{}, options.stride(),
                                               options.padding(), options.dilation(),
                                               options.groups());
}

}  // namespace mnist_train::models
