#pragma once

#include <memory>

#include "models/model.h"

namespace mnist_train::models {

/// `mlp`: the flattened image through linear layers of `hidden` sizes (1024, 1024), each followed
/// by `activation` (tanh), then a linear layer to the classes. State_dict: fc1, fc2, … in order.
/// `init` normal draws weights and biases.
std::shared_ptr<Model> make_mlp(const settings::ModelOptions& options, const ImageShape& shape);

}  // namespace mnist_train::models
