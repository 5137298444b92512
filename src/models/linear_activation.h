#pragma once

#include <torch/nn/modules/linear.h>

#include <optional>

#include "kernels/operations.h"
#include "models/gradient_places.h"

namespace mnist_train::models {

/// Returns the output of a linear layer, with an activation if `function` is given. Values and
/// gradients are LibTorch's up to rounding; one pass computes the gradients of the activation and
/// of the bias. On a CPU, gradients are written to `places`, if they have any.
at::Tensor linear_activation(torch::nn::LinearImpl& layer,
                             std::optional<kernels::LinearFunction> function, const at::Tensor& x,
                             GradientPlaces& places);

}  // namespace mnist_train::models
