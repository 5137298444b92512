#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "models/model.h"

namespace mnist_train::models {

// Networks from outside this program.

/// Returns the network of a TorchScript file, on the CPU, with the weights, and the names of
/// modules, parameters and buffers, of the file. Throws Error(kConfig) if the file is unusable, or
/// its network does not fit images of this shape.
std::shared_ptr<Model> make_script_model(const std::filesystem::path& file,
                                         const network::ImageShape& shape);

/// Loads a plug-in and returns its network, on the CPU, for images of this shape. It reads
/// `options`, the text of a JSON object, and draws its initial weights from LibTorch's generator.
/// Throws Error(kConfig) if library, options (all mistakes at once) or network are unusable.
std::shared_ptr<Model> make_plugin_model(const std::filesystem::path& file,
                                         const std::string& options,
                                         const network::ImageShape& shape);

}  // namespace mnist_train::models
