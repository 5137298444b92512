#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "models/convolve_relu_max_pool.h"
#include "models/networks.h"

namespace mnist_train::models {

namespace {

using settings::Activation;

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
      const torch::nn::Conv2dOptions options(channels, block.channels, block.kernel);
      convolutions_.push_back(register_module("conv" + std::to_string(convolutions_.size() + 1),
                                              torch::nn::Conv2d(options)));
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
    for (torch::nn::Conv2d& layer : convolutions_) x = convolve_relu_max_pool(layer, x);
    x = x.flatten(1);
    for (std::size_t i = 0; i + 1 < linear_.size(); ++i) x = activate(linear_[i](x), activation_);
    return linear_.back()(x);
  }

 private:
  void add_linear(std::int64_t in, std::int64_t out) {
    linear_.push_back(
        register_module("fc" + std::to_string(linear_.size() + 1), torch::nn::Linear(in, out)));
  }

  Activation activation_;
  std::vector<torch::nn::Conv2d> convolutions_;
  std::vector<torch::nn::Linear> linear_;
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

}  // namespace mnist_train::models
