#pragma once

#include <torch/nn/module.h>

namespace mnist_train::models {

enum class BiasInit { kDefault, kDrawn };

/// Draws the weights of every linear and convolution layer from N(0, std), in registration order;
/// biases are drawn too, or left at PyTorch's default. Other layers (batch norm) keep
/// theirs.
void draw_normal(torch::nn::Module& module, double std, BiasInit biases);

/// Xavier uniform for the weights of every linear and convolution layer, biases 0.
void draw_xavier_uniform(torch::nn::Module& module);

}  // namespace mnist_train::models
