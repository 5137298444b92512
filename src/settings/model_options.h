#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace mnist_train::settings {

enum class ModelName { kNet, kMlp, kLeNet, kResNet18 };
enum class Activation { kTanh, kRelu, kSigmoid };
enum class InitName { kDefault, kNormal };

/// How the weights are initialized.
struct InitOptions {
  InitName name = InitName::kDefault;
  std::optional<double> std;  // of normal; none: the model's default

  bool operator==(const InitOptions&) const = default;
};

/// The network that is trained.
struct ModelOptions {
  ModelName name = ModelName::kNet;
  std::optional<std::filesystem::path> weights;     // absolute; a file to start from
  std::vector<std::int64_t> hidden = {1024, 1024};  // mlp
  Activation activation = Activation::kTanh;        // mlp
  InitOptions init;

  bool operator==(const ModelOptions&) const = default;
};

}  // namespace mnist_train::settings
