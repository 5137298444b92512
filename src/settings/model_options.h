#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "strict_json/schema_fwd.h"

namespace mnist_train::settings {

enum class ModelName { kNet, kMlp, kLeNet, kResNet18 };
enum class Activation { kTanh, kRelu, kSigmoid };
enum class InitName { kDefault, kNormal };

/// Initial weights.
struct InitOptions {
  InitName name = InitName::kDefault;
  std::optional<double> std;  // of normal; none: the model's own

  bool operator==(const InitOptions&) const = default;
};

/// What is trained.
struct ModelOptions {
  ModelName name = ModelName::kNet;
  std::optional<std::filesystem::path> weights;     // absolute; a file to start from
  std::vector<std::int64_t> hidden = {1024, 1024};  // mlp
  Activation activation = Activation::kTanh;        // mlp
  InitOptions init;

  bool operator==(const ModelOptions&) const = default;
};

/// The keys of `model`.
strict_json::Schema<ModelOptions> model_schema();

}  // namespace mnist_train::settings
