#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "settings/layer_options.h"

namespace mnist_train::settings {

enum class ModelName { kNet, kMlp, kLeNet, kResNet18 };

/// The network that is trained: a built-in one by its name, or one of the user's own, which is a
/// list of layers, a file of TorchScript or a plug-in.
struct ModelOptions {
  ModelName name = ModelName::kNet;  // means nothing beside the next three
  std::optional<LayerList> layers;
  std::optional<std::filesystem::path> torchscript;  // absolute
  std::optional<std::filesystem::path> plugin;       // absolute
  std::string options = "{}";                        // plugin: a JSON object
  std::optional<std::filesystem::path> weights;      // absolute; a file to start from
  std::vector<std::int64_t> hidden = {1024, 1024};   // mlp
  Activation activation = Activation::kTanh;         // mlp
  InitOptions init;

  /// Returns whether the network is one of the user's own.
  bool is_own() const { return layers || torchscript || plugin; }
  /// Returns whether the network is known layer by layer, not only by what it computes.
  bool has_layers() const { return !torchscript && !plugin; }

  bool operator==(const ModelOptions&) const = default;
};

/// Returns the built-in model's name in the config.
std::string name_of(ModelName name);

}  // namespace mnist_train::settings
