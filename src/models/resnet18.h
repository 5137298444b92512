#pragma once

#include <memory>

#include "models/model.h"

namespace mnist_train::models {

/// `resnet18`, as in Dive into Deep Learning 13.6 (https://d2l.ai): conv 1->64 3x3 padded, batch
/// norm, ReLU, four stages of two residual blocks (64, 128, 256, 512 channels; the last three start
/// with stride 2 and a 1x1 convolution beside), global average pool, 512->classes. Convolutions
/// have biases. State_dict: 0, 1, resnet_block1.0.conv1, …, fc.1, as that chapter's `nn.Sequential`
/// has them. `init` normal (std 0.01) draws weights.
std::shared_ptr<Model> make_resnet18(const settings::ModelOptions& options,
                                     const ImageShape& shape);

}  // namespace mnist_train::models
