#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "settings/augment_options.h"
#include "settings/layer_options.h"

namespace mnist_train::settings {

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

/// A file with initial weights, and the part of the network that it does not give.
struct WeightsOptions {
  std::filesystem::path file;        // absolute
  std::vector<std::string> fresh{};  // "head", or globs of tensors that keep their initial values
};

/// The network that is trained: a built-in one by name, or a custom one, which is a list of layers,
/// a TorchScript file or a plug-in.
struct ModelOptions {
  ModelName name = ModelName::kNet;  // ignored if one of the next three is set
  std::optional<LayerList> layers;
  std::optional<std::filesystem::path> torchscript;  // absolute
  std::optional<std::filesystem::path> plugin;       // absolute
  std::string options = "{}";                        // plugin: a JSON object
  std::optional<WeightsOptions> weights;
  std::vector<std::int64_t> hidden = {1024, 1024};  // mlp
  Activation activation = Activation::kTanh;        // mlp
  InitOptions init;

  /// Returns whether the network is a custom one.
  bool is_own() const { return layers || torchscript || plugin; }
  /// Returns whether the network is a list of layers, not a black box.
  bool has_layers() const { return !torchscript && !plugin; }
};

/// Returns the built-in model's name in the config.
std::string name_of(ModelName name);

/// Returns all built-in models.
std::vector<ModelName> all_models();

/// Returns the normalisation of RGB images with which the published weights of a network were
/// trained; nothing for networks without such weights.
std::optional<NormalizeOptions> published_normalize(const ModelOptions& options);

}  // namespace mnist_train::settings
