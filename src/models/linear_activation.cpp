#include "models/linear_activation.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "kernels/linear_activation.h"
#include "kernels/selection.h"
#include "models/host_linear_activation.h"
#include "models/host_product.h"

namespace mnist_train::models {

namespace {

using kernels::LinearFunction;

class LinearActivation : public torch::autograd::Function<LinearActivation> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias, bool is_relu,
                            bool by_kernel) {
    at::Tensor y = x.is_cpu() ? host_product(x, weight, bias) : at::linear(x, weight, bias);
    if (is_relu) {
      y.relu_();
    } else if (y.is_cpu()) {
      host_tanh(y);
    } else {
      y.tanh_();
    }
    context->save_for_backward({x, weight, y});
    context->saved_data["is_relu"] = is_relu;
    context->saved_data["by_kernel"] = by_kernel;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const bool is_relu = context->saved_data["is_relu"].toBool();
    const bool by_kernel = context->saved_data["by_kernel"].toBool();
    const auto gradients_of =
        by_kernel ? kernels::linear_activation_gradients : host_linear_activation_gradients;
    const auto found = gradients_of(is_relu ? LinearFunction::kRelu : LinearFunction::kTanh,
                                    saved[2], gradients[0].contiguous());
    const at::Tensor& of_sums = found.linear;
    const bool on_host = x.is_cpu();
    at::Tensor of_x;
    at::Tensor of_weight;
    if (context->needs_input_grad(0)) {
      of_x = on_host ? host_product(of_sums, weight.t()) : of_sums.mm(weight);
    }
    if (context->needs_input_grad(1)) {
      of_weight = on_host ? host_product(of_sums.t(), x.t()) : of_sums.t().mm(x);
    }
    return {of_x, of_weight, found.bias, {}, {}};
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
    const bool by_kernel = fits_gpu_kernel(*layer, x);
    if (by_kernel || can_host_linear_activation(x, layer->weight, layer->bias)) {
      return LinearActivation::apply(x, layer->weight, layer->bias, is_relu, by_kernel);
    }
    return function(layer->forward(x));
  };
}

}  // namespace mnist_train::models
