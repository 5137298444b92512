#pragma once

#include <filesystem>
#include <memory>

#include "models/model.h"

namespace mnist_train::models {

/// Returns the network of a TorchScript file, on the CPU, with the weights that are in the file.
/// Its modules, parameters and buffers have the names that they have there. Throws Error(kConfig)
/// that says what is wrong with the file, or with the network for images of this shape.
std::shared_ptr<Model> make_script_model(const std::filesystem::path& file,
                                         const network::ImageShape& shape);

}  // namespace mnist_train::models
