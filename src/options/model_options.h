#pragma once

#include <filesystem>
#include <optional>

#include "config/schema_fwd.h"

namespace mnist_train::options {

enum class ModelName { kNet, kMlp, kLeNet, kResNet18 };

struct ModelOptions {
  ModelName name = ModelName::kNet;
  std::optional<std::filesystem::path> weights;  // absolute; a file to start from

  bool operator==(const ModelOptions&) const = default;
};

config::Schema<ModelOptions> model_schema();

}  // namespace mnist_train::options
