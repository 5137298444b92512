#include "models/convolution.h"

#include <torch/nn/functional/conv.h>

#include <variant>

namespace mnist_train::models {

bool can_convolve_without_bias(const torch::nn::Conv2dImpl& layer, const at::Tensor& images) {
  return images.dim() == 4 &&
         std::holds_alternative<torch::enumtype::kZeros>(layer.options.padding_mode());
}

at::Tensor convolve_without_bias(const torch::nn::Conv2dImpl& layer, const at::Tensor& images) {
  const auto& options = layer.options;
  return torch::nn::functional::detail::conv2d(images, layer.weight, /*bias=*/{}, options.stride(),
                                               options.padding(), options.dilation(),
                                               options.groups());
}

}  // namespace mnist_train::models
