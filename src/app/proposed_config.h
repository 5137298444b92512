#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/sources.h"
#include "settings/model_options.h"

namespace mnist_train::app {

/// A folder of class folders.
struct PictureFolder {
  std::filesystem::path train;                // absolute
  std::optional<std::filesystem::path> test;  // a folder of its own; none: to be held out
  std::vector<std::string> class_names{};
  std::vector<std::int64_t> class_sizes{};  // pictures
  data::PictureSurvey survey{};
  std::optional<std::filesystem::path> validation{};  // data.validation, a fraction, cannot name it
};

/// Lists a folder and looks at its pictures. Subfolders such as `train` and `test` are sets, other
/// ones classes. Throws Error(kData) unless there are pictures of two classes.
PictureFolder open_picture_folder(const std::filesystem::path& folder);

/// A file of weights to start from.
struct InitialWeights {
  std::filesystem::path file;  // absolute
  settings::ModelName network = settings::ModelName::kTorchvisionResNet18;
};

struct ProposedConfig {
  nlohmann::ordered_json config;
  std::vector<std::string> reasons{};  // a line each
};

/// Chooses a config that suits the pictures.
ProposedConfig propose_config(const PictureFolder& pictures,
                              const std::optional<InitialWeights>& weights);

/// Returns JSON as a person formats it: values that fit on a line are written on one.
std::string readable_json(const nlohmann::ordered_json& json);

}  // namespace mnist_train::app
