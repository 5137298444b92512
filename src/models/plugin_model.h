#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "models/model.h"

namespace mnist_train::models {

/// Loads a plug-in and returns its network, on the CPU, for images of this shape. It reads
/// `options`, the text of a JSON object, and draws its initial weights from LibTorch's generator.
/// Throws Error(kConfig) that says what is wrong with the library, with the options (all mistakes
/// at once) or with the network.
std::shared_ptr<Model> make_plugin_model(const std::filesystem::path& file,
                                         const std::string& options,
                                         const network::ImageShape& shape);

}  // namespace mnist_train::models
