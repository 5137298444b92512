#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "settings/augment_options.h"

namespace mnist_train::settings {

enum class Activation {
  kTanh,
  kRelu,
  kSigmoid,
  kGelu,
  kSilu,
  kLeakyRelu,
  kRelu6,
  kHardswish,
  kHardsigmoid
};
enum class InitName { kDefault, kNormal, kXavierUniform, kKaimingNormal };

/// How the weights of one layer, or of all layers of a model, are initialised.
struct InitOptions {
  InitName name = InitName::kDefault;
  std::optional<double> std{};  // for kNormal; none: the model's default
};

// Layers with torch.nn's arguments. Heights and widths are in pixels; input sizes are inferred.

/// A number of outputs; none: the number of classes in the data.
using OutputSize = std::optional<std::int64_t>;

/// Zero padding on every side of the images; none: preserves the image size ("same").
using Padding = std::optional<ImageSize>;

struct Conv2dLayer {
  OutputSize out_channels;
  ImageSize kernel_size{1, 1};
  ImageSize stride{1, 1};
  Padding padding = ImageSize{0, 0};
  ImageSize dilation{1, 1};
  std::int64_t groups = 1;
  bool bias = true;
  std::optional<InitOptions> init;  // none: model.init
};

struct LinearLayer {
  OutputSize out_features;
  bool bias = true;
  std::optional<InitOptions> init;  // none: model.init
};

struct BatchNormLayer {
  double eps = 1e-5;
  double momentum = 0.1;
};

struct GroupNormLayer {
  std::int64_t num_groups = 1;
  double eps = 1e-5;
};

struct ActivationLayer {
  Activation function = Activation::kRelu;
  double negative_slope = 0.01;    // leaky_relu
  bool tanh_approximates = false;  // gelu
};

struct MaxPool2dLayer {
  ImageSize kernel_size{2, 2};
  std::optional<ImageSize> stride;  // none: the kernel's size
  ImageSize padding{0, 0};
  ImageSize dilation{1, 1};
  bool ceil_mode = false;
  bool operator==(const MaxPool2dLayer&) const = default;
};

struct AvgPool2dLayer {
  ImageSize kernel_size{2, 2};
  std::optional<ImageSize> stride;  // none: the kernel's size
  ImageSize padding{0, 0};
  bool ceil_mode = false;
  bool count_include_pad = true;
};

struct AdaptiveAvgPool2dLayer {
  ImageSize output_size{1, 1};
};

/// Pixels at each edge of an image, in the order of torch.nn.ZeroPad2d.
struct Edges {
  std::int64_t left = 0;
  std::int64_t right = 0;
  std::int64_t top = 0;
  std::int64_t bottom = 0;
};

struct ZeroPad2dLayer {
  Edges padding;
};

struct FlattenLayer {};

struct DropoutLayer {
  double p = 0.5;
};

/// One layer of a network.
struct Layer;
using LayerList = std::vector<Layer>;

/// Consecutive layers.
struct SequentialLayer {
  LayerList layers;
};

/// Adds the outputs of `layers` and `shortcut` (if empty: the input itself) for the same input.
struct ResidualLayer {
  LayerList layers;
  LayerList shortcut;
  std::optional<Activation> activation;  // applied to the sum
  /// If not empty: the modules with weights, in state_dict order. They are then registered in the
  /// block itself, without the prefixes "layers." and "shortcut.".
  std::vector<std::string> modules;
};

/// Multiplies the input by the output of `layers`, as in squeeze-and-excitation. A 1x1 output is
/// broadcast over the image.
struct GateLayer {
  LayerList layers;
};

/// Repeats `layers` `times` times, each time with separate weights.
struct RepeatLayer {
  std::int64_t times = 1;
  LayerList layers;
};

using LayerKind = std::variant<Conv2dLayer, LinearLayer, BatchNormLayer, GroupNormLayer,
                               ActivationLayer, MaxPool2dLayer, AvgPool2dLayer,
                               AdaptiveAvgPool2dLayer, ZeroPad2dLayer, FlattenLayer, DropoutLayer,
                               SequentialLayer, ResidualLayer, GateLayer, RepeatLayer>;

struct Layer {
  std::string as;  // the module's name; empty: its index in the list
  LayerKind kind;
};

/// Returns the activation's name in the config, such as "relu".
std::string name_of(Activation function);

/// Returns the layer's name in the config, such as "conv2d".
std::string name_of(const LayerKind& kind);

/// Returns the list as JSON text, in the form used in a config.
std::string write_layers(const LayerList& layers);

enum class ModelName {
  kNet,
  kMlp,
  kLeNet,
  kResNet18,
  kTorchvisionResNet18,
  kTorchvisionResNet34,
  kTorchvisionResNet50,
  kTorchvisionMobileNetV2,
  kEfficientNetLite0
};

/// A file with initial weights, and the parts of the network that do not use it.
struct WeightsOptions {
  std::filesystem::path file;        // absolute
  std::vector<std::string> fresh{};  // "head", or globs of tensors with fresh initialisation
};

/// The network to train: built-in by name, or a custom layer list, TorchScript file or plug-in.
struct ModelOptions {
  ModelName name = ModelName::kNet;  // ignored if one of the next three is set
  std::optional<LayerList> layers;
  std::optional<std::filesystem::path> torchscript;  // absolute
  std::optional<std::filesystem::path> plugin;       // absolute
  std::string options = "{}";                        // for a plug-in: a JSON object
  std::optional<WeightsOptions> weights;
  std::vector<std::int64_t> hidden = {1024, 1024};  // mlp
  Activation activation = Activation::kTanh;        // mlp
  InitOptions init;

  bool is_custom() const { return layers || torchscript || plugin; }
  /// Returns whether the network consists of layers rather than being a black box.
  bool has_layers() const { return !torchscript && !plugin; }
};

/// Returns the built-in model's name in the config.
std::string name_of(ModelName name);

std::vector<ModelName> all_models();

/// Returns the normalisation of RGB images with which a network's published weights were trained;
/// nullopt for networks without published weights.
std::optional<NormalizeOptions> published_normalize(const ModelOptions& options);

}  // namespace mnist_train::settings
