#include "models/initial_weights.h"

#include <torch/nn/init.h>

namespace mnist_train::models {

using settings::InitName;

void initialize(const std::vector<WeightedLayer>& layers, const settings::InitOptions& init,
                const network::InitDefaults& defaults) {
  for (const WeightedLayer& weighted : layers) {
    const settings::InitOptions& own = weighted.init.value_or(init);
    const InitName name = own.name == InitName::kDefault ? defaults.name : own.name;
    const auto parameters = weighted.module->named_parameters(/*recurse=*/false);
    at::Tensor weight = parameters["weight"];
    const at::Tensor* bias = parameters.find("bias");
    if (name == InitName::kDefault) continue;
    if (name == InitName::kNormal) {
      const double std = own.std.value_or(defaults.normal_std);
      torch::nn::init::normal_(weight, 0, std);
      if (bias != nullptr && defaults.normal_draws_biases) {
        torch::nn::init::normal_(*bias, 0, std);
      }
      continue;
    }
    if (name == InitName::kXavierUniform) torch::nn::init::xavier_uniform_(weight);
    if (name == InitName::kKaimingNormal) {
      torch::nn::init::kaiming_normal_(weight, 0, torch::kFanIn, torch::kReLU);
    }
    if (bias != nullptr) torch::nn::init::zeros_(*bias);
  }
}

}  // namespace mnist_train::models
