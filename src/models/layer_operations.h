#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/normalization.h>

#include <functional>
#include <memory>
#include <vector>

#include "settings/layer_options.h"

namespace mnist_train::models {

/// The forward pass of a layer, or of several.
using Operation = std::function<at::Tensor(const at::Tensor&)>;
using Operations = std::vector<Operation>;

/// Returns the forward pass of torch.nn.GroupNorm.
Operation group_norm_operation(std::shared_ptr<torch::nn::GroupNormImpl> layer);

// What layers without weights do.

Operation operation_of(const settings::ActivationLayer& layer);
Operation operation_of(const settings::MaxPool2dLayer& layer);
Operation operation_of(const settings::AvgPool2dLayer& layer);
Operation operation_of(const settings::AdaptiveAvgPool2dLayer& layer);
Operation operation_of(const settings::FlattenLayer& layer);

}  // namespace mnist_train::models
