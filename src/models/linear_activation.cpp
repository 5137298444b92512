#include "models/linear_activation.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>

namespace mnist_train::models {

namespace {

using kernels::LinearFunction;

class LinearActivation : public torch::autograd::Function<LinearActivation> {
 public:
  /// `function` is the value of a LinearFunction.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias,
                            std::int64_t function) {
    at::Tensor y = at::linear(x, weight, bias);
    static_cast<LinearFunction>(function) == LinearFunction::kTanh ? y.tanh_() : y.relu_();
    context->save_for_backward({x, weight, y});
    context->saved_data["function"] = function;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const auto function = static_cast<LinearFunction>(context->saved_data["function"].toInt());
    const kernels::LinearActivationGradients found =
        kernels::linear_activation_gradients(function, saved[2], gradients[0].contiguous());
    at::Tensor of_x;
    at::Tensor of_weight;
    if (context->needs_input_grad(0)) of_x = found.linear.mm(weight);
    if (context->needs_input_grad(1)) of_weight = found.linear.t().mm(x);
    return {of_x, of_weight, found.bias, {}};
  }
};

}  // namespace

at::Tensor linear_activation(torch::nn::LinearImpl& layer, LinearFunction function,
                             const at::Tensor& x) {
  if (kernels::is_used(kernels::Operation::kLinearActivation, x.device()) &&
      kernels::can_linear_activation(x, layer.weight, layer.bias)) {
    return LinearActivation::apply(x, layer.weight, layer.bias,
                                   static_cast<std::int64_t>(function));
  }
  const at::Tensor y = layer.forward(x);
  return function == LinearFunction::kRelu ? at::relu(y) : at::tanh(y);
}

}  // namespace mnist_train::models
