#include "models/linear_activation.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "kernels/linear_activation.h"
#include "kernels/selection.h"

namespace mnist_train::models {

namespace {

using kernels::LinearFunction;

class LinearActivation : public torch::autograd::Function<LinearActivation> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias, bool is_relu) {
    const at::Tensor sums = at::linear(x, weight, bias);
    at::Tensor y = is_relu ? at::relu(sums) : at::tanh(sums);
    context->save_for_backward({x, weight, y});
    context->saved_data["is_relu"] = is_relu;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const bool is_relu = context->saved_data["is_relu"].toBool();
    const auto found = kernels::linear_activation_gradients(
        is_relu ? LinearFunction::kRelu : LinearFunction::kTanh, saved[2],
        gradients[0].contiguous());
    // The products that LibTorch computes behind at::linear.
    at::Tensor of_x;
    at::Tensor of_weight;
    if (context->needs_input_grad(0)) of_x = found.linear.mm(weight);
    if (context->needs_input_grad(1)) of_weight = found.linear.t().mm(x);
    return {of_x, of_weight, found.bias, {}};
  }
};

bool fits_gpu_kernel(const torch::nn::LinearImpl& layer, const at::Tensor& x) {
  return kernels::is_used(kernels::Operation::kLinearActivation, x.device()) &&
         kernels::can_linear_activation(x, layer.weight, layer.bias);
}

}  // namespace

Operation linear_activation(std::shared_ptr<torch::nn::LinearImpl> layer,
                            const settings::ActivationLayer& activation) {
  return [layer = std::move(layer), function = operation_of(activation),
          is_relu = activation.function == settings::Activation::kRelu](const at::Tensor& x) {
    return fits_gpu_kernel(*layer, x)
               ? LinearActivation::apply(x, layer->weight, layer->bias, is_relu)
               : function(layer->forward(x));
  };
}

}  // namespace mnist_train::models
