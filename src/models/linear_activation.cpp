#include "models/linear_activation.h"

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
  /// `place` is where the weight's gradient is wanted, if anywhere. `function` is a
  /// LinearFunction's number, or none, for which there is no GPU kernel.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const std::optional<at::Tensor>& place,
                            std::optional<std::int64_t> function, bool by_kernel) {
    const bool is_relu = function == number_of(LinearFunction::kRelu);
    const bool is_tanh = function == number_of(LinearFunction::kTanh);
    at::Tensor y = x.is_cpu() ? host_linear(x, weight, bias, is_relu) : at::linear(x, weight, bias);
    if (is_tanh) {
      x.is_cpu() ? host_tanh(y) : static_cast<void>(y.tanh_());
    } else if (is_relu && !x.is_cpu()) {
      y.relu_();
    }
    context->save_for_backward({x, weight, y});
    // Not saved as a variable, since others write to it before it is needed.
    context->saved_data["place"] = place.value_or(at::Tensor());
    context->saved_data["function"] = function;
    context->saved_data["by_kernel"] = by_kernel;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor of_y = gradients[0].contiguous();
    std::optional<LinearFunction> function;
    if (const auto number = context->saved_data["function"].toOptional<std::int64_t>()) {
      function = static_cast<LinearFunction>(*number);
    }
    const auto found = context->saved_data["by_kernel"].toBool()
                           ? kernels::linear_activation_gradients(function.value(), saved[2], of_y)
                           : host_linear_activation_gradients(function, saved[2], of_y);
    const at::Tensor& of_sums = found.linear;
    at::Tensor of_x;
    at::Tensor of_weight;
    if (context->needs_input_grad(0)) {
      of_x = x.is_cpu() ? host_linear_input_gradient(of_sums, weight) : of_sums.mm(weight);
    }
    if (context->needs_input_grad(1)) {
      of_weight = x.is_cpu() ? host_linear_weight_gradient(of_sums, x,
                                                           context->saved_data["place"].toTensor())
                             : of_sums.t().mm(x);
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

/// Returns where the layer's weight wants the gradient of the pass that begins, if anywhere.
std::optional<at::Tensor> place_of(const torch::nn::LinearImpl& layer, GradientPlaces& places) {
  at::Tensor place = at::GradMode::is_enabled() ? places.take(layer.weight) : at::Tensor();
  return place.defined() ? std::optional(std::move(place)) : std::nullopt;
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
      return LinearActivation::apply(x, layer->weight, layer->bias, place_of(*layer, places),
                                     std::optional(number), by_kernel);
    }
    return function(layer->forward(x));
  };
}

Operation linear(std::shared_ptr<torch::nn::LinearImpl> layer, GradientPlaces& places) {
  return [layer = std::move(layer), &places](const at::Tensor& x) {
    return can_host_linear_activation(x, layer->weight, layer->bias)
               ? LinearActivation::apply(x, layer->weight, layer->bias, place_of(*layer, places),
                                         std::optional<std::int64_t>(), /*by_kernel=*/false)
               : layer->forward(x);
  };
}

}  // namespace mnist_train::models
