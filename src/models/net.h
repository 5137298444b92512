#pragma once

#include <memory>

#include "models/model.h"

namespace mnist_train::models {

/// `net`, the network of the DDP MNIST example: conv 1->20 5x5, ReLU, max-pool 2, conv 20->50 5x5,
/// ReLU, max-pool 2, 800->500, ReLU, 500->10, log-softmax; PyTorch's default initialisation. Other
/// image shapes change the first convolution's channels and the first linear layer's inputs.
/// State_dict: conv1, conv2, fc1, fc2.
std::shared_ptr<Model> make_net(const settings::ModelOptions& options, const ImageShape& shape);

}  // namespace mnist_train::models
