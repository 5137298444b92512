#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "models/batch_norm.h"
#include "models/model.h"
#include "models/relu_max_pool.h"

namespace mnist_train::models {

namespace {

using settings::Activation;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Linear;
using torch::nn::Sequential;

/// A square convolution without padding, followed by ReLU and 2x2 max-pooling.
struct ConvolutionBlock {
  std::int64_t channels;
  std::int64_t kernel;

  std::int64_t side_after(std::int64_t side) const { return (side - kernel + 1) / 2; }
  std::int64_t least_side_before(std::int64_t side) const { return 2 * side + kernel - 1; }
};

/// A network without branches: convolution blocks, linear layers of the `hidden` sizes, each
/// followed by `activation`, and a linear layer to the classes.
struct PlainLayers {
  std::string name;
  std::vector<ConvolutionBlock> blocks;
  std::vector<std::int64_t> hidden;
  Activation activation;
};

/// How many numbers the convolution blocks leave of an image.
std::int64_t features_after_blocks(const PlainLayers& layers, const ImageShape& shape) {
  std::int64_t channels = shape.channels;
  std::int64_t height = shape.height;
  std::int64_t width = shape.width;
  for (const ConvolutionBlock& block : layers.blocks) {
    channels = block.channels;
    height = block.side_after(height);
    width = block.side_after(width);
  }
  if (height >= 1 && width >= 1) return channels * height * width;
  std::int64_t side = 1;
  for (auto block = layers.blocks.rbegin(); block != layers.blocks.rend(); ++block) {
    side = block->least_side_before(side);
  }
  const std::string least = std::to_string(side);
  throw Error(ExitCode::kConfig, "model \"" + layers.name + "\" needs images of at least " + least +
                                     "x" + least + ", the data has " +
                                     std::to_string(shape.height) + "x" +
                                     std::to_string(shape.width));
}

at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSigmoid:
      return at::sigmoid(x);
    default:
      return at::tanh(x);
  }
}

class PlainNetwork : public Model {
 public:
  PlainNetwork(const PlainLayers& layers, const ImageShape& shape)
      : activation_(layers.activation) {
    std::int64_t features = features_after_blocks(layers, shape);
    std::int64_t channels = shape.channels;
    for (const ConvolutionBlock& block : layers.blocks) {
      const Conv2dOptions options(channels, block.channels, block.kernel);
      convolutions_.push_back(
          register_module("conv" + std::to_string(convolutions_.size() + 1), Conv2d(options)));
      channels = block.channels;
    }
    for (const std::int64_t size : layers.hidden) {
      add_linear(features, size);
      features = size;
    }
    add_linear(features, shape.classes);
  }

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = images;
    for (Conv2d& layer : convolutions_) x = convolve_relu_max_pool(layer, x);
    x = x.flatten(1);
    for (std::size_t i = 0; i + 1 < linear_.size(); ++i) x = activate(linear_[i](x), activation_);
    return linear_.back()(x);
  }

 private:
  void add_linear(std::int64_t in, std::int64_t out) {
    linear_.push_back(register_module("fc" + std::to_string(linear_.size() + 1), Linear(in, out)));
  }

  Activation activation_;
  std::vector<Conv2d> convolutions_;
  std::vector<Linear> linear_;
};

/// Two 3x3 convolutions with batch norm, added to the shortcut. With `stride` 2 the block halves
/// the image, and the shortcut has a 1x1 convolution.
class ResidualBlock : public torch::nn::Module {
 public:
  ResidualBlock(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1_(
            register_module("conv1", Conv2d(Conv2dOptions(in, out, 3).padding(1).stride(stride)))),
        conv2_(register_module("conv2", Conv2d(Conv2dOptions(out, out, 3).padding(1)))) {
    if (stride > 1) {
      conv3_ = register_module("conv3", Conv2d(Conv2dOptions(in, out, 1).stride(stride)));
    }
    bn1_ = register_module("bn1", std::make_shared<BatchNorm2d>(out));
    bn2_ = register_module("bn2", std::make_shared<BatchNorm2d>(out));
  }

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = bn2_->forward(conv2_(at::relu(bn1_->forward(conv1_(x)))));
    return at::relu(y + (conv3_ ? conv3_(x) : x));
  }

 private:
  Conv2d conv1_;
  Conv2d conv2_;
  Conv2d conv3_{nullptr};
  std::shared_ptr<BatchNorm2d> bn1_;
  std::shared_ptr<BatchNorm2d> bn2_;
};

class ResNet18 : public Model {
 public:
  explicit ResNet18(const ImageShape& shape)
      : conv_(register_module("0", Conv2d(Conv2dOptions(shape.channels, 64, 3).padding(1)))),
        norm_(register_module("1", std::make_shared<BatchNorm2d>(64))) {
    add_stage(64, 64, /*stride=*/1);
    add_stage(64, 128, /*stride=*/2);
    add_stage(128, 256, /*stride=*/2);
    add_stage(256, 512, /*stride=*/2);
    // "fc.0" is the flattening in the chapter, so the linear layer is "1".
    fc_ = register_module("fc", Sequential({{"1", Linear(512, shape.classes)}}));
  }

  at::Tensor forward(const at::Tensor& images) override {
    at::Tensor x = at::relu(norm_->forward(conv_(images)));   // [N,64,28,28]
    for (Sequential& stage : stages_) x = stage->forward(x);  // [N,512,4,4]
    return fc_->forward(x.mean(at::IntArrayRef{2, 3}));       // [N,10]
  }

 private:
  void add_stage(std::int64_t in, std::int64_t out, std::int64_t stride) {
    Sequential stage;
    stage->push_back(std::make_shared<ResidualBlock>(in, out, stride));
    stage->push_back(std::make_shared<ResidualBlock>(out, out, /*stride=*/1));
    stages_.push_back(
        register_module("resnet_block" + std::to_string(stages_.size() + 1), std::move(stage)));
  }

  Conv2d conv_;
  std::shared_ptr<BatchNorm2d> norm_;
  std::vector<Sequential> stages_;
  Sequential fc_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_net(const settings::ModelOptions& /*options*/,
                                const ImageShape& shape) {
  const PlainLayers layers{"net", {{20, 5}, {50, 5}}, {500}, Activation::kRelu};
  return std::make_shared<PlainNetwork>(layers, shape);
}

std::shared_ptr<Model> make_lenet(const settings::ModelOptions& /*options*/,
                                  const ImageShape& shape) {
  const PlainLayers layers{"lenet", {{6, 5}, {16, 3}}, {120, 84}, Activation::kRelu};
  return std::make_shared<PlainNetwork>(layers, shape);
}

std::shared_ptr<Model> make_mlp(const settings::ModelOptions& options, const ImageShape& shape) {
  const PlainLayers layers{"mlp", {}, options.hidden, options.activation};
  return std::make_shared<PlainNetwork>(layers, shape);
}

std::shared_ptr<Model> make_resnet18(const settings::ModelOptions& /*options*/,
                                     const ImageShape& shape) {
  return std::make_shared<ResNet18>(shape);
}

}  // namespace mnist_train::models
