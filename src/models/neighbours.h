#pragma once

#include <span>
#include <variant>
#include <vector>

#include "network/network.h"

namespace mnist_train::models {

// Layers for which there is one operation where they follow each other.

/// Layers of which each takes what the one before it gives.
using Neighbours = std::span<const network::SizedLayer* const>;

template <class Kind>
const Kind* kind_as(const network::SizedLayer& sized) {
  return std::get_if<Kind>(&sized.kind);
}

/// Returns whether the first layers are a convolution, ReLU and the 2x2 max-pooling that
/// `relu_max_pool` does.
bool are_convolution_relu_max_pool(Neighbours next);
/// Returns whether the first layers are a ReLU and the 2x2 max-pooling that `relu_max_pool` does.
bool are_relu_max_pool(Neighbours next);
/// Returns whether the first layers are a convolution with a bias and a batch norm.
bool are_biased_convolution_batch_norm(Neighbours next);
/// Returns whether these layers begin with one that makes images vectors.
bool begin_with_flatten(Neighbours next);
/// Returns whether the first layers are a batch norm and a ReLU that no other operation takes.
bool are_batch_norm_relu(Neighbours next);
/// Returns whether the first layers are a linear layer and a function that `linear_activation` has.
bool are_linear_activation(Neighbours next);
/// Returns whether the first layers average images and leave a vector of their channels.
bool are_average_flatten(Neighbours next);

}  // namespace mnist_train::models
