#include "models/layer_operations.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include <utility>

namespace mnist_train::models {

Operation group_norm_operation(std::shared_ptr<torch::nn::GroupNormImpl> layer) {
  return [layer = std::move(layer)](const at::Tensor& x) {
    if (x.requires_grad() || !at::GradMode::is_enabled()) return layer->forward(x);
    // LibTorch's backward pass crashes on channels_last input that needs no gradient.
    return layer->forward(x.clone(at::MemoryFormat::Contiguous));
  };
}

using settings::Activation;
using settings::sides;

Operation operation_of(const settings::ActivationLayer& layer) {
  switch (layer.function) {
    case Activation::kRelu:
      return [](const at::Tensor& x) { return at::relu(x); };
    case Activation::kTanh:
      return [](const at::Tensor& x) { return at::tanh(x); };
    case Activation::kSigmoid:
      return [](const at::Tensor& x) { return at::sigmoid(x); };
    case Activation::kSilu:
      return [](const at::Tensor& x) { return at::silu(x); };
    case Activation::kGelu:
      return [approximate = layer.tanh_approximates ? "tanh" : "none"](const at::Tensor& x) {
        return at::gelu(x, approximate);
      };
    case Activation::kLeakyRelu:
      return
          [slope = layer.negative_slope](const at::Tensor& x) { return at::leaky_relu(x, slope); };
  }
  return {};
}

Operation operation_of(const settings::MaxPool2dLayer& layer) {
  return [layer](const at::Tensor& x) {
    return at::max_pool2d(x, sides(layer.kernel_size), sides(layer.stride.value()),
                          sides(layer.padding), sides(layer.dilation), layer.ceil_mode);
  };
}

Operation operation_of(const settings::AvgPool2dLayer& layer) {
  return [layer](const at::Tensor& x) {
    return at::avg_pool2d(x, sides(layer.kernel_size), sides(layer.stride.value()),
                          sides(layer.padding), layer.ceil_mode, layer.count_include_pad);
  };
}

Operation operation_of(const settings::AdaptiveAvgPool2dLayer& layer) {
  return [size = sides(layer.output_size)](const at::Tensor& x) {
    return at::adaptive_avg_pool2d(x, size);
  };
}

Operation operation_of(const settings::FlattenLayer& /*layer*/) {
  return [](const at::Tensor& x) { return x.flatten(1); };
}

}  // namespace mnist_train::models
