#include "models/initialize.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace mnist_train::models {

namespace {

/// Calls `function(weight, bias)` for each linear and convolution layer.
template <class Function>
void for_each_layer(torch::nn::Module& module, Function&& function) {
  for (const auto& child : module.modules()) {
    if (auto* linear = child->as<torch::nn::Linear>()) function(linear->weight, linear->bias);
    if (auto* conv = child->as<torch::nn::Conv2d>()) function(conv->weight, conv->bias);
  }
}

}  // namespace

void draw_normal(torch::nn::Module& module, double std, BiasInit biases) {
  for_each_layer(module, [&](at::Tensor& weight, at::Tensor& bias) {
    torch::nn::init::normal_(weight, 0, std);
    if (biases == BiasInit::kDrawn) torch::nn::init::normal_(bias, 0, std);
  });
}

void draw_xavier_uniform(torch::nn::Module& module) {
  for_each_layer(module, [](at::Tensor& weight, at::Tensor& bias) {
    torch::nn::init::xavier_uniform_(weight);
    torch::nn::init::zeros_(bias);
  });
}

}  // namespace mnist_train::models
