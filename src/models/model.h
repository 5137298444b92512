#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <span>

#include "models/batch_norm.h"
#include "settings/model_options.h"

namespace mnist_train::models {

/// Size of the images and number of classes, which the data decide.
struct ImageShape {
  std::int64_t channels = 1;
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t classes = 10;
};

/// A classifier of images. Its submodules have PyTorch's names, so that its parameters and buffers
/// by name are the state_dict of the same network in Python.
class Model : public torch::nn::Module {
 public:
  /// Returns the logits [N,classes] of images [N,C,H,W]; both have the floating-point type that the
  /// model computes in. A final log-softmax is left to the loss.
  virtual at::Tensor forward(const at::Tensor& images) = 0;

  /// Makes the batch norm layers use the statistics of the global batch, which `sum` adds up over
  /// the ranks; `forward` and backward are collectives from then on. Throws Error(kConfig) naming
  /// each layer with statistics of its own that is not a models::BatchNorm2d.
  void synchronize_batch_norm(const SumOverRanks& sum);
  bool synchronizes_batch_norm() const { return synchronizes_batch_norm_; }
  /// Turns all parameters but those of batch norm layers into bf16; `forward` then takes bf16
  /// images.
  void compute_in_bfloat16();

 private:
  bool synchronizes_batch_norm_ = false;
};

/// One row of the table of built-in models.
struct ModelEntry {
  settings::ModelName name;
  std::shared_ptr<Model> (*make)(const settings::ModelOptions& options, const ImageShape& shape);
  double normal_std;       // of `init` normal where the config gives no std
  bool draws_biases;       // whether `init` normal draws biases, too, or leaves them to PyTorch
  bool xavier_by_default;  // whether `init` default is Xavier uniform, or PyTorch's default
};

/// Returns a row for every built-in model.
std::span<const ModelEntry> model_table();

/// Returns the model that `options` name, on the CPU, with initial weights that depend on `seed`
/// alone. Throws Error(kConfig) when the images are too small for it.
std::shared_ptr<Model> make_model(const settings::ModelOptions& options, const ImageShape& shape,
                                  std::int64_t seed);

// The built-in networks, with PyTorch's default initial weights. Image shapes other than MNIST's
// change the input channels of the first layer and the input features of the first linear layer.
// Each function throws Error(kConfig) where the images are too small.

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
