#pragma once

#include <torch/nn/modules/conv.h>

namespace mnist_train::models {

/// Convolution, ReLU and 2x2 max-pooling: `relu_max_pool(layer(images))` and its gradients.
/// `images` is [N,C,H,W]. In bf16 on a CPU that is fit for it, and for a layer with a square
/// kernel, stride 1 and no padding, kernels of our own take one image after the other through all
/// three, so that what lies between them stays in the processor's cache; sums are fp32, as they are
/// in LibTorch's kernels, which all other cases use.
at::Tensor convolve_relu_max_pool(torch::nn::Conv2d& layer, const at::Tensor& images);

}  // namespace mnist_train::models
