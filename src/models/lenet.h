#pragma once

#include <memory>

#include "models/model.h"

namespace mnist_train::models {

/// `lenet`, as in Gluon's multi-device tutorial: conv 1->6 5x5, ReLU, max-pool 2, conv 6->16 3x3,
/// ReLU, max-pool 2, 400->120, ReLU, 120->84, ReLU, 84->10; Xavier uniform, biases 0. Other image
/// shapes change the first convolution's channels and the first linear layer's inputs. State_dict:
/// conv1, conv2, fc1, fc2, fc3.
std::shared_ptr<Model> make_lenet(const settings::ModelOptions& options, const ImageShape& shape);

}  // namespace mnist_train::models
