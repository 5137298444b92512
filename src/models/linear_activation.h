#pragma once

#include <torch/nn/modules/linear.h>

#include <memory>

#include "models/gradient_places.h"
#include "models/layer_operations.h"

namespace mnist_train::models {

/// Returns the operation that computes a linear layer and the ReLU or tanh behind it. Numbers and
/// gradients are LibTorch's up to rounding; one pass computes both the gradient in front of the
/// function and that of the bias. On a CPU gradients are written to their places, if they have
/// some. `places` must live as long as the operation.
Operation linear_activation(std::shared_ptr<torch::nn::LinearImpl> layer,
                            const settings::ActivationLayer& activation, GradientPlaces& places);

/// Returns the operation that computes a linear layer with nothing behind it, by the same kernels
/// on a CPU.
Operation linear(std::shared_ptr<torch::nn::LinearImpl> layer, GradientPlaces& places);

}  // namespace mnist_train::models
