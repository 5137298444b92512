#include <optional>
#include <string>

#include "network/network.h"

namespace mnist_train::network {

namespace {

using settings::Activation;
using settings::ActivationLayer;
using settings::Layer;
using settings::LayerList;
using settings::ModelName;

constexpr std::int64_t kLargestSideTried = 1024;

Layer relu() { return {"", ActivationLayer{Activation::kRelu}}; }

Layer conv2d(std::string as, std::int64_t out_channels, std::int64_t kernel,
             std::int64_t padding = 0, std::int64_t stride = 1) {
  settings::Conv2dLayer layer;
  layer.out_channels = out_channels;
  layer.kernel_size = {kernel, kernel};
  layer.padding = settings::ImageSize{padding, padding};
  layer.stride = {stride, stride};
  return {std::move(as), layer};
}

Layer linear(std::string as, settings::OutputSize out_features) {
  settings::LinearLayer layer;
  layer.out_features = out_features;
  return {std::move(as), layer};
}

Layer batch_norm(std::string as = "") { return {std::move(as), settings::BatchNormLayer{}}; }
Layer flatten() { return {"", settings::FlattenLayer{}}; }

void add_linear_layers(LayerList& layers, const std::vector<std::int64_t>& hidden,
                       Activation activation) {
  layers.push_back(flatten());
  std::int64_t number = 1;
  for (const std::int64_t size : hidden) {
    layers.push_back(linear("fc" + std::to_string(number++), size));
    layers.push_back({"", ActivationLayer{activation}});
  }
  layers.push_back(linear("fc" + std::to_string(number), std::nullopt));
}

/// Convolutions, each with ReLU and 2x2 max-pooling, then linear layers with ReLU between them.
struct ConvolutionBlock {
  std::int64_t channels;
  std::int64_t kernel;
};
LayerList convolutional(const std::vector<ConvolutionBlock>& blocks,
                        const std::vector<std::int64_t>& hidden) {
  LayerList layers;
  std::int64_t number = 1;
  for (const ConvolutionBlock& block : blocks) {
    layers.push_back(conv2d("conv" + std::to_string(number++), block.channels, block.kernel));
    layers.push_back(relu());
    layers.push_back({"", settings::MaxPool2dLayer{}});
  }
  add_linear_layers(layers, hidden, Activation::kRelu);
  return layers;
}

/// The network of PyTorch's MNIST example.
LayerList net() { return convolutional({{20, 5}, {50, 5}}, {500}); }

/// The network of Gluon's multi-device tutorial.
LayerList lenet() { return convolutional({{6, 5}, {16, 3}}, {120, 84}); }

LayerList mlp(const settings::ModelOptions& options) {
  LayerList layers;
  add_linear_layers(layers, options.hidden, options.activation);
  return layers;
}

/// Two 3x3 convolutions with batch norm. With `stride` 2 the block halves the image, and the
/// shortcut is a 1x1 convolution. The modules are in the order of the book's class.
Layer residual_block(std::int64_t channels, std::int64_t stride) {
  settings::ResidualLayer block;
  block.layers = {conv2d("conv1", channels, 3, /*padding=*/1, stride), batch_norm("bn1"), relu(),
                  conv2d("conv2", channels, 3, /*padding=*/1), batch_norm("bn2")};
  block.modules = {"conv1", "conv2", "bn1", "bn2"};
  if (stride > 1) {
    block.shortcut = {conv2d("conv3", channels, 1, /*padding=*/0, stride)};
    block.modules = {"conv1", "conv2", "conv3", "bn1", "bn2"};
  }
  block.activation = Activation::kRelu;
  return {"", block};
}

/// ResNet-18 of Dive into Deep Learning 13.6 (https://d2l.ai).
LayerList resnet18() {
  LayerList layers{conv2d("", 64, 3, /*padding=*/1), batch_norm(), relu()};
  std::int64_t number = 1;
  for (const std::int64_t channels : {64, 128, 256, 512}) {
    settings::SequentialLayer stage;
    stage.layers = {residual_block(channels, number == 1 ? 1 : 2), residual_block(channels, 1)};
    layers.push_back({"resnet_block" + std::to_string(number++), stage});
  }
  layers.push_back({"global_avg_pool", settings::AdaptiveAvgPool2dLayer{}});
  layers.push_back({"fc", settings::SequentialLayer{{flatten(), linear("", std::nullopt)}}});
  return layers;
}

/// Returns whether square images of this size pass through the layers.
bool fits(const LayerList& layers, ImageShape images, std::int64_t side) try {
  images.height = images.width = side;
  (void)infer_sizes(layers, images);
  return true;
} catch (const LayerError&) {
  return false;
}

}  // namespace

settings::LayerList layers_of(const settings::ModelOptions& options) {
  if (options.layers) return *options.layers;
  switch (options.name) {
    case ModelName::kNet:
      return net();
    case ModelName::kMlp:
      return mlp(options);
    case ModelName::kLeNet:
      return lenet();
    case ModelName::kResNet18:
      return resnet18();
  }
  return {};
}

Network make_network(const settings::ModelOptions& options, const ImageShape& images) {
  const LayerList layers = layers_of(options);
  try {
    return infer_sizes(layers, images);
  } catch (const LayerError& error) {
    if (options.layers) throw;
    const std::string named = "/model/name: model \"" + settings::name_of(options.name) + '"';
    std::int64_t side = 1;
    while (side < kLargestSideTried && !fits(layers, images, side)) ++side;
    // No size of images helps.
    if (side == kLargestSideTried) throw ConfigKeyError(named + ": " + error.reason());
    throw ConfigKeyError(named + " needs images of at least " + settings::text_of({side, side}) +
                         ", the data has " + settings::text_of({images.height, images.width}));
  }
}

InitDefaults init_defaults(const settings::ModelOptions& options) {
  InitDefaults defaults;
  if (options.is_own()) return defaults;
  if (options.name == ModelName::kLeNet) defaults.name = settings::InitName::kXavierUniform;
  if (options.name == ModelName::kResNet18) {
    defaults.normal_std = 0.01;
    defaults.normal_draws_biases = false;
  }
  return defaults;
}

}  // namespace mnist_train::network
