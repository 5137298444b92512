#pragma once

#include <torch/nn/modules/linear.h>

#include "kernels/operations.h"

namespace mnist_train::models {

/// Returns the output of a linear layer with an activation. Values and gradients are LibTorch's up
/// to rounding; on a GPU one kernel computes the gradients of the activation and of the bias.
at::Tensor linear_activation(torch::nn::LinearImpl& layer, kernels::LinearFunction function,
                             const at::Tensor& x);

}  // namespace mnist_train::models
