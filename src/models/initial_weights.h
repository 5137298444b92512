#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <vector>

#include "network/network.h"
#include "settings/layer_options.h"

namespace mnist_train::models {

/// A convolution or linear layer, and the config's init of this layer alone.
struct WeightedLayer {
  std::shared_ptr<torch::nn::Module> module;
  std::optional<settings::InitOptions> init;
};

/// Draws the weights of `layers` again, in their order, but for those that are to be as PyTorch has
/// drawn them. `init` is for layers without one of their own.
void initialize(const std::vector<WeightedLayer>& layers, const settings::InitOptions& init,
                const network::InitDefaults& defaults);

}  // namespace mnist_train::models
