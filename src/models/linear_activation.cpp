#include "models/linear_activation.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "kernels/linear_activation.h"
#include "kernels/selection.h"
#include "models/host_linear.h"
#include "models/host_linear_activation.h"

namespace mnist_train::models {

namespace {

using kernels::LinearFunction;

class LinearActivation : public torch::autograd::Function<LinearActivation> {
 public:
  /// `wanted` says where a CPU writes the gradients of weight and bias. `function` is a
  /// LinearFunction's number, or none, for which there is no GPU kernel.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const WantedGradients& wanted, std::optional<std::int64_t> function,
                            bool by_kernel) {
    const bool is_relu = function == number_of(LinearFunction::kRelu);
    const bool is_tanh = function == number_of(LinearFunction::kTanh);
    at::Tensor y = x.is_cpu() ? host_linear(x, weight, bias, is_relu) : at::linear(x, weight, bias);
    if (is_tanh) {
      x.is_cpu() ? host_tanh(y) : static_cast<void>(y.tanh_());
    } else if (is_relu && !x.is_cpu()) {
      y.relu_();
    }
    context->save_for_backward({x, weight, y});
    wanted.save(context->saved_data);
    context->saved_data["function"] = function;
    context->saved_data["by_kernel"] = by_kernel;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& y = saved[2];
    const at::Tensor of_y = gradients[0].contiguous();
    std::optional<LinearFunction> function;
    if (const auto number = context->saved_data["function"].toOptional<std::int64_t>()) {
      function = static_cast<LinearFunction>(*number);
    }
    const bool by_kernel = context->saved_data["by_kernel"].toBool();
    kernels::LinearActivationGradients found{function ? at::empty_like(y) : of_y, {}};
    if (by_kernel) found = kernels::linear_activation_gradients(function.value(), y, of_y);
    at::Tensor of_x;
    at::Tensor of_weight;
    if (x.is_cpu()) {
      const auto wanted = WantedGradients::saved(context->saved_data);
      if (!by_kernel) {
        found.bias = host_linear_activation_gradients(function, y, of_y, found.linear, wanted.bias);
      }
      if (context->needs_input_grad(1)) {
        of_weight = host_linear_weight_gradient(found.linear, x, wanted.weight);
      }
      if (context->needs_input_grad(0)) of_x = host_linear_input_gradient(found.linear, weight);
    } else {
      if (context->needs_input_grad(0)) of_x = found.linear.mm(weight);
      if (context->needs_input_grad(1)) of_weight = found.linear.t().mm(x);
    }
    return {of_x, of_weight, found.bias, {}, {}, {}};
  }

  static std::int64_t number_of(LinearFunction function) {
    return static_cast<std::int64_t>(function);
  }
};

bool fits_gpu_kernel(const torch::nn::LinearImpl& layer, const at::Tensor& x) {
  return kernels::is_used(kernels::Operation::kLinearActivation, x.device()) &&
         kernels::can_linear_activation(x, layer.weight, layer.bias);
}

/// Returns where the layer's gradients of the pass that begins are wanted. GPU kernels write them
/// anywhere.
WantedGradients wanted_of(const torch::nn::LinearImpl& layer, GradientPlaces& places,
                          bool by_kernel) {
  if (by_kernel || !at::GradMode::is_enabled()) return {};
  return places.take(layer.weight, layer.bias);
}

}  // namespace

Operation linear_activation(std::shared_ptr<torch::nn::LinearImpl> layer,
                            const settings::ActivationLayer& activation, GradientPlaces& places) {
  const bool is_relu = activation.function == settings::Activation::kRelu;
  const std::int64_t number =
      LinearActivation::number_of(is_relu ? LinearFunction::kRelu : LinearFunction::kTanh);
  return [layer = std::move(layer), function = operation_of(activation), number,
          &places](const at::Tensor& x) {
    const bool by_kernel = fits_gpu_kernel(*layer, x);
    if (by_kernel || can_host_linear_activation(x, layer->weight, layer->bias)) {
      return LinearActivation::apply(x, layer->weight, layer->bias,
                                     wanted_of(*layer, places, by_kernel), std::optional(number),
                                     by_kernel);
    }
    return function(layer->forward(x));
  };
}

Operation linear(std::shared_ptr<torch::nn::LinearImpl> layer, GradientPlaces& places) {
  return [layer = std::move(layer), &places](const at::Tensor& x) {
    constexpr bool kByKernel = false;
    return can_host_linear_activation(x, layer->weight, layer->bias)
               ? LinearActivation::apply(x, layer->weight, layer->bias,
                                         wanted_of(*layer, places, kByKernel),
                                         std::optional<std::int64_t>(), kByKernel)
               : layer->forward(x);
  };
}

}  // namespace mnist_train::models
