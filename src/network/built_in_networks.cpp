#include <algorithm>

#include "network/network.h"

namespace mnist_train::network {

namespace {

using settings::Activation;
using settings::ActivationLayer;
using settings::Layer;
using settings::LayerList;
using settings::ModelName;

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

Layer batch_norm(std::string as = "", const settings::BatchNormLayer& layer = {}) {
  return {std::move(as), layer};
}
Layer sequential(std::string as, LayerList layers) {
  return {std::move(as), settings::SequentialLayer{std::move(layers)}};
}
Layer average_pool(std::string as = "") {
  return {std::move(as), settings::AdaptiveAvgPool2dLayer{}};
}
Layer dropout(double p) { return {"", settings::DropoutLayer{p}}; }
Layer flatten() { return {"", settings::FlattenLayer{}}; }

/// Convolutions (`blocks`: channels and kernel sizes), each followed by ReLU and 2x2 max-pooling,
/// then linear layers with `activation` between them.
LayerList feed_forward(const std::vector<std::pair<std::int64_t, std::int64_t>>& blocks,
                       const std::vector<std::int64_t>& hidden,
                       Activation activation = Activation::kRelu) {
  LayerList layers;
  std::int64_t number = 1;
  for (const auto& [channels, kernel] : blocks) {
    layers.push_back(conv2d("conv" + std::to_string(number++), channels, kernel));
    layers.insert(layers.end(), {relu(), {"", settings::MaxPool2dLayer{}}});
  }
  layers.push_back(flatten());
  number = 1;
  for (const std::int64_t size : hidden) {
    layers.push_back(linear("fc" + std::to_string(number++), size));
    layers.push_back({"", ActivationLayer{activation}});
  }
  layers.push_back(linear("fc" + std::to_string(number), std::nullopt));
  return layers;
}

/// LeNet from Gluon's multi-device tutorial. Its default `init` is Xavier uniform.
LayerList lenet(const settings::InitOptions& init) {
  LayerList layers = feed_forward({{6, 5}, {16, 3}}, {120, 84});
  if (init.name != settings::InitName::kDefault) return layers;
  for (Layer& layer : layers) {
    const auto use_xavier = [](auto& kind) {
      if constexpr (requires { kind.init; }) {
        kind.init = settings::InitOptions{settings::InitName::kXavierUniform};
      }
    };
    std::visit(use_xavier, layer.kind);
  }
  return layers;
}

/// Two 3x3 convolutions with batch norm. With `stride` 2, the block halves the image, and the
/// shortcut is a 1x1 convolution. The modules are in the order of d2l's class.
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

/// ResNet-18 from Dive into Deep Learning 13.6 (https://d2l.ai).
LayerList resnet18() {
  LayerList layers{conv2d("", 64, 3, /*padding=*/1), batch_norm(), relu()};
  std::int64_t number = 1;
  for (const std::int64_t channels : {64, 128, 256, 512}) {
    const std::int64_t stride = number == 1 ? 1 : 2;
    layers.push_back(sequential("resnet_block" + std::to_string(number++),
                                {residual_block(channels, stride), residual_block(channels, 1)}));
  }
  layers.push_back(average_pool("global_avg_pool"));
  layers.push_back(sequential("fc", {flatten(), linear("", std::nullopt)}));
  return layers;
}

// The networks of torchvision and efficientnet-lite-pytorch, with their module names.

/// A convolution without bias that preserves the image size at stride 1.
Layer plain_conv2d(std::string as, std::int64_t out_channels, std::int64_t kernel,
                   std::int64_t stride = 1, std::int64_t groups = 1) {
  Layer layer = conv2d(std::move(as), out_channels, kernel, /*padding=*/kernel / 2, stride);
  auto& kind = std::get<settings::Conv2dLayer>(layer.kind);
  kind.groups = groups;
  kind.bias = false;
  return layer;
}

/// A residual block of torchvision's ResNets: two 3x3 convolutions or, as a bottleneck, a 3x3
/// between two 1x1 convolutions, the last with four times the channels.
Layer torchvision_block(std::int64_t channels, std::int64_t stride, bool is_bottleneck,
                        bool has_projection) {
  settings::ResidualLayer block;
  const auto add = [&](const std::string& number, std::int64_t outputs, std::int64_t kernel,
                       std::int64_t conv_stride) {
    if (!block.layers.empty()) block.layers.push_back(relu());
    block.layers.push_back(plain_conv2d("conv" + number, outputs, kernel, conv_stride));
    block.layers.push_back(batch_norm("bn" + number));
    block.modules.insert(block.modules.end(), {"conv" + number, "bn" + number});
  };
  const std::int64_t out = is_bottleneck ? 4 * channels : channels;
  if (is_bottleneck) add("1", channels, 1, 1);
  add(is_bottleneck ? "2" : "1", channels, 3, stride);
  add(is_bottleneck ? "3" : "2", out, is_bottleneck ? 1 : 3, 1);
  if (has_projection) {
    block.shortcut = {sequential("downsample", {plain_conv2d("", out, 1, stride), batch_norm()})};
    block.modules.emplace_back("downsample");
  }
  block.activation = Activation::kRelu;
  return {"", block};
}

LayerList torchvision_resnet(const std::vector<std::int64_t>& blocks, bool is_bottleneck) {
  const settings::MaxPool2dLayer pool{{3, 3}, settings::ImageSize{2, 2}, /*padding=*/{1, 1}};
  LayerList layers{plain_conv2d("conv1", 64, 7, 2), batch_norm("bn1"), relu(), {"", pool}};
  std::int64_t channels = 64;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage, channels *= 2) {
    LayerList list;
    for (std::int64_t i = 0; i < blocks[stage]; ++i) {
      const std::int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      const bool has_projection = i == 0 && (stage > 0 || is_bottleneck);
      list.push_back(torchvision_block(channels, stride, is_bottleneck, has_projection));
    }
    layers.push_back(sequential("layer" + std::to_string(stage + 1), std::move(list)));
  }
  layers.insert(layers.end(), {average_pool(), flatten(), linear("fc", std::nullopt)});
  return layers;
}

/// A row in the tables of inverted residual blocks.
struct InvertedBlocks {
  std::int64_t expansion;
  std::int64_t channels;
  std::int64_t times;
  std::int64_t stride;  // of the first block
  std::int64_t kernel = 3;
};

Layer relu6() { return {"", ActivationLayer{Activation::kRelu6}}; }

Layer mobilenet_convolution(std::string as, std::int64_t out_channels, std::int64_t kernel,
                            std::int64_t stride = 1, std::int64_t groups = 1) {
  return sequential(std::move(as), {plain_conv2d("", out_channels, kernel, stride, groups),
                                    batch_norm(), relu6()});
}

LayerList torchvision_mobilenet_v2() {
  LayerList features{mobilenet_convolution("", 32, 3, 2)};
  std::int64_t in = 32;
  for (const auto& [expansion, channels, times, stride, kernel] :
       std::vector<InvertedBlocks>{{1, 16, 1, 1},
                                   {6, 24, 2, 2},
                                   {6, 32, 3, 2},
                                   {6, 64, 4, 2},
                                   {6, 96, 3, 1},
                                   {6, 160, 3, 2},
                                   {6, 320, 1, 1}}) {
    for (std::int64_t i = 0; i < times; ++i) {
      const std::int64_t conv_stride = i == 0 ? stride : 1;
      const std::int64_t wide = expansion * in;
      LayerList inner;
      if (expansion > 1) inner.push_back(mobilenet_convolution("", wide, 1));
      inner.push_back(mobilenet_convolution("", wide, kernel, conv_stride, wide));
      inner.insert(inner.end(), {plain_conv2d("", channels, 1), batch_norm()});
      Layer conv = sequential("conv", std::move(inner));
      const bool adds_input = conv_stride == 1 && in == channels;
      features.push_back(adds_input ? Layer{"", settings::ResidualLayer{{conv}, {}, {}, {"conv"}}}
                                    : sequential("", {conv}));
      in = channels;
    }
  }
  features.push_back(mobilenet_convolution("", 1280, 1));
  return {sequential("features", std::move(features)), average_pool(), flatten(),
          sequential("classifier", {dropout(0.2), linear("", std::nullopt)})};
}

/// Halves one side of an image and returns the zero padding at its two ends, as TensorFlow's "SAME"
/// padding does for stride 2. If the padding is odd, the extra zero is at the end.
std::pair<std::int64_t, std::int64_t> halve(std::int64_t& side, std::int64_t kernel) {
  const std::int64_t half = (side + 1) / 2;
  const std::int64_t zeros = std::max<std::int64_t>((half - 1) * 2 + kernel - side, 0);
  side = half;
  return {zeros / 2, zeros - zeros / 2};
}

LayerList efficientnet_lite0(ImageShape images) {
  const settings::BatchNormLayer norm{1e-3, 0.01};
  const auto halving = [&](const std::string& as, std::int64_t channels, std::int64_t kernel,
                           std::int64_t groups, LayerList& layers) {
    const auto [top, bottom] = halve(images.height, kernel);
    const auto [left, right] = halve(images.width, kernel);
    layers.push_back({"", settings::ZeroPad2dLayer{{left, right, top, bottom}}});
    layers.push_back(plain_conv2d(as, channels, kernel, 2, groups));
    std::get<settings::Conv2dLayer>(layers.back().kind).padding = settings::ImageSize{0, 0};
  };
  LayerList layers;
  halving("_conv_stem", 32, 3, 1, layers);
  layers.insert(layers.end(), {batch_norm("_bn0", norm), relu6()});
  LayerList blocks;
  std::int64_t in = 32;
  for (const auto& [expansion, channels, times, stride, kernel] :
       std::vector<InvertedBlocks>{{1, 16, 1, 1},
                                   {6, 24, 2, 2},
                                   {6, 40, 2, 2, 5},
                                   {6, 80, 3, 2},
                                   {6, 112, 3, 1, 5},
                                   {6, 192, 4, 2, 5},
                                   {6, 320, 1, 1}}) {
    for (std::int64_t i = 0; i < times; ++i) {
      const std::int64_t wide = expansion * in;
      settings::ResidualLayer block;
      if (expansion > 1) {
        block.layers = {plain_conv2d("_expand_conv", wide, 1), batch_norm("_bn0", norm), relu6()};
        block.modules = {"_expand_conv", "_bn0"};
      }
      if (i == 0 && stride == 2) {
        halving("_depthwise_conv", wide, kernel, wide, block.layers);
      } else {
        block.layers.push_back(plain_conv2d("_depthwise_conv", wide, kernel, 1, wide));
      }
      block.layers.insert(block.layers.end(),
                          {batch_norm("_bn1", norm), relu6(),
                           plain_conv2d("_project_conv", channels, 1), batch_norm("_bn2", norm)});
      block.modules.insert(block.modules.end(),
                           {"_depthwise_conv", "_bn1", "_project_conv", "_bn2"});
      const bool adds_input = (i > 0 || stride == 1) && in == channels;
      blocks.push_back(adds_input ? Layer{"", block} : sequential("", std::move(block.layers)));
      in = channels;
    }
  }
  layers.push_back(sequential("_blocks", std::move(blocks)));
  layers.insert(layers.end(),
                {plain_conv2d("_conv_head", 1280, 1), batch_norm("_bn1", norm), relu6(),
                 average_pool(), flatten(), dropout(0.2), linear("_fc", std::nullopt)});
  return layers;
}

}  // namespace

settings::LayerList layers_of(const settings::ModelOptions& options, const ImageShape& images) {
  if (options.layers) return *options.layers;
  switch (options.name) {
    case ModelName::kNet:  // from PyTorch's MNIST example
      return feed_forward({{20, 5}, {50, 5}}, {500});
    case ModelName::kMlp:
      return feed_forward({}, options.hidden, options.activation);
    case ModelName::kLeNet:
      return lenet(options.init);
    case ModelName::kResNet18:
      return resnet18();
    case ModelName::kTorchvisionResNet18:
      return torchvision_resnet({2, 2, 2, 2}, /*is_bottleneck=*/false);
    case ModelName::kTorchvisionResNet34:
      return torchvision_resnet({3, 4, 6, 3}, /*is_bottleneck=*/false);
    case ModelName::kTorchvisionResNet50:
      return torchvision_resnet({3, 4, 6, 3}, /*is_bottleneck=*/true);
    case ModelName::kTorchvisionMobileNetV2:
      return torchvision_mobilenet_v2();
    case ModelName::kEfficientNetLite0:
      return efficientnet_lite0(images);
  }
  return {};
}

Network make_network(const settings::ModelOptions& options, const ImageShape& images) {
  const LayerList layers = layers_of(options, images);
  try {
    return infer_sizes(layers, images);
  } catch (const LayerError& error) {
    if (options.layers) throw;
    throw ConfigKeyError("/model/name: model \"" + settings::name_of(options.name) +
                         "\" for images of " + settings::text_of({images.height, images.width}) +
                         ": " + error.reason());
  }
}

InitDefaults init_defaults(const settings::ModelOptions& options) {
  if (options.is_custom()) return {};
  switch (options.name) {
    case ModelName::kResNet18:
      return {.normal_std = 0.01, .normal_draws_biases = false};
    case ModelName::kTorchvisionResNet18:
    case ModelName::kTorchvisionResNet34:
    case ModelName::kTorchvisionResNet50:
      return {.kaiming_convolutions = true};
    case ModelName::kTorchvisionMobileNetV2:
      return {.kaiming_convolutions = true, .linear_std = 0.01};
    default:
      return {};
  }
}

}  // namespace mnist_train::network
