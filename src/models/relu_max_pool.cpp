#include "models/relu_max_pool.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "kernels/operations.h"
#include "models/convolution.h"

namespace mnist_train::models {

namespace {

constexpr at::MemoryFormat kChannelsLast = at::MemoryFormat::ChannelsLast;

at::MemoryFormat format_of_pooled(bool planar) {
  return planar ? at::MemoryFormat::Contiguous : kChannelsLast;
}

class ReluMaxPool : public torch::autograd::Function<ReluMaxPool> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& bias, bool planar) {
    const at::Tensor x = input.contiguous(kChannelsLast);
    const std::vector<std::int64_t> sizes{x.size(0), x.size(1), x.size(2) / 2, x.size(3) / 2};
    at::Tensor out = at::empty(sizes, x.options().memory_format(format_of_pooled(planar)));
    const at::Tensor choice =
        at::empty(sizes, x.options().dtype(at::kByte).memory_format(kChannelsLast));
    kernels::relu_max_pool(x, bias.value_or(at::Tensor()), out, choice);
    context->save_for_backward({choice});
    context->saved_data["height"] = x.size(2);
    context->saved_data["width"] = x.size(3);
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["planar"] = planar;
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor choice = context->get_saved_variables()[0];
    const at::Tensor gradient =
        gradients[0].contiguous(format_of_pooled(context->saved_data["planar"].toBool()));
    const std::int64_t height = context->saved_data["height"].toInt();
    const std::int64_t width = context->saved_data["width"].toInt();
    at::Tensor into = at::empty({gradient.size(0), gradient.size(1), height, width},
                                gradient.options().memory_format(kChannelsLast));
    at::Tensor bias_gradient;
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(1)) {
      bias_gradient = at::empty({into.size(1)}, into.options());
    }
    kernels::relu_max_pool_backward(gradient, choice, into, bias_gradient);
    return {into, bias_gradient, {}};
  }
};

}  // namespace

at::Tensor relu_max_pool(const at::Tensor& x, const at::Tensor& bias, bool flatten) {
  if (kernels::is_used(kernels::Operation::kReluMaxPool, x.device()) &&
      kernels::can_relu_max_pool(x, bias)) {
    const at::Tensor out = ReluMaxPool::apply(
        x, bias.defined() ? std::optional(bias) : std::nullopt, /*planar=*/flatten);
    return flatten ? out.flatten(1) : out;
  }
  if (bias.defined()) return relu_max_pool(x + bias.view({-1, 1, 1}), /*bias=*/{}, flatten);
  // ReLU after the pooling gives the same values and gradients as before it, with a quarter of the
  // elements.
  const at::Tensor out = at::relu(at::max_pool2d(x, 2));
  return flatten ? out.flatten(1) : out;
}

at::Tensor convolve_relu_max_pool(torch::nn::Conv2dImpl& layer, const at::Tensor& images,
                                  bool flatten) {
  if (kernels::is_used(kernels::Operation::kReluMaxPool, images.device()) &&
      can_convolve_without_bias(layer, images)) {
    return relu_max_pool(convolve_without_bias(layer, images), layer.bias, flatten);
  }
  return relu_max_pool(layer.forward(images), /*bias=*/{}, flatten);
}

}  // namespace mnist_train::models
