#pragma once

#include <memory>

#include "models/model.h"

/// The built-in networks, with PyTorch's default initial weights. Image shapes other than MNIST's
/// change the input channels of the first layer and the input features of the first linear layer.
/// Each function throws Error(kConfig) where the images are too small.
namespace mnist_train::models {

/// Makes `net`, the network of PyTorch's MNIST example: conv 1->20 5x5, ReLU, max-pool 2, conv
/// 20->50 5x5, ReLU, max-pool 2, linear 800->500, ReLU, linear 500->10. Its state_dict has conv1,
/// conv2, fc1, fc2.
std::shared_ptr<Model> make_net(const settings::ModelOptions& options, const ImageShape& shape);

/// Makes `lenet`, the network of Gluon's multi-device tutorial: conv 1->6 5x5, ReLU, max-pool 2,
/// conv 6->16 3x3, ReLU, max-pool 2, linear 400->120, ReLU, linear 120->84, ReLU, linear 84->10.
/// Its state_dict has conv1, conv2, fc1, fc2, fc3.
std::shared_ptr<Model> make_lenet(const settings::ModelOptions& options, const ImageShape& shape);

/// Makes `mlp`: the flattened image through linear layers of the option `hidden`'s sizes, each
/// followed by `activation`, then a linear layer to the classes. Its state_dict has fc1, fc2, ….
std::shared_ptr<Model> make_mlp(const settings::ModelOptions& options, const ImageShape& shape);

/// Makes `resnet18` of Dive into Deep Learning 13.6 (https://d2l.ai): conv 1->64 3x3 padded, batch
/// norm, ReLU, four stages of two residual blocks (64, 128, 256, 512 channels; the last three start
/// with stride 2 and a 1x1 convolution in the shortcut), global average pool, linear 512->10. The
/// convolutions have biases. Its state_dict is that of the chapter's `nn.Sequential`: 0, 1,
/// resnet_block1.0.conv1, …, fc.1.
std::shared_ptr<Model> make_resnet18(const settings::ModelOptions& options,
                                     const ImageShape& shape);

}  // namespace mnist_train::models
