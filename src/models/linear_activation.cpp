#include "models/linear_activation.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <optional>

#include "kernels/operations.h"
#include "models/host_linear.h"

namespace mnist_train::models {

namespace {

using kernels::LinearFunction;

class LinearActivation : public torch::autograd::Function<LinearActivation> {
 public:
  /// `wanted` are destination buffers of a CPU. `function` is the value of a LinearFunction, or
  /// none, for which there is no GPU kernel.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const WantedGradients& wanted, std::optional<std::int64_t> function,
                            bool by_kernel) {
    const bool is_relu = function == static_cast<std::int64_t>(LinearFunction::kRelu);
    const bool is_tanh = function == static_cast<std::int64_t>(LinearFunction::kTanh);
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
      if (!by_kernel && (function || context->needs_input_grad(2))) {
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
};

}  // namespace

at::Tensor linear_activation(torch::nn::LinearImpl& layer, std::optional<LinearFunction> function,
                             const at::Tensor& x, GradientPlaces& places) {
  const bool by_kernel = function &&
                         kernels::is_used(kernels::Operation::kLinearActivation, x.device()) &&
                         kernels::can_linear_activation(x, layer.weight, layer.bias);
  if (by_kernel || can_host_linear_activation(x, layer.weight, layer.bias)) {
    WantedGradients wanted;  // GPU kernels allocate their gradients
    if (!by_kernel && at::GradMode::is_enabled()) wanted = places.take(layer.weight, layer.bias);
    std::optional<std::int64_t> number;
    if (function) number = static_cast<std::int64_t>(*function);
    return LinearActivation::apply(x, layer.weight, layer.bias, wanted, number, by_kernel);
  }
  at::Tensor y = layer.forward(x);
  if (!function) return y;
  return function == LinearFunction::kRelu ? at::relu(y) : at::tanh(y);
}

}  // namespace mnist_train::models
