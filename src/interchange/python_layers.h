#pragma once

#include <string>
#include <vector>

#include "network/network.h"

namespace mnist_train::interchange {

/// The arguments of a call in Python.
using Arguments = std::vector<std::string>;

// Each returns an expression of Python that makes the module of torch.nn for a layer without inner
// layers, with the arguments that differ from PyTorch's defaults.

std::string expression_of(const network::SizedLayer& sized, const settings::Conv2dLayer& layer);
std::string expression_of(const network::SizedLayer& sized, const settings::LinearLayer& layer);
std::string expression_of(const network::SizedLayer& sized, const settings::BatchNormLayer& layer);
std::string expression_of(const network::SizedLayer& sized, const settings::GroupNormLayer& layer);
std::string expression_of(const settings::ActivationLayer& layer);
std::string expression_of(const settings::MaxPool2dLayer& layer);
std::string expression_of(const settings::AvgPool2dLayer& layer);
std::string expression_of(const settings::AdaptiveAvgPool2dLayer& layer);
std::string expression_of(const settings::FlattenLayer& layer);
std::string expression_of(const settings::DropoutLayer& layer);

}  // namespace mnist_train::interchange
