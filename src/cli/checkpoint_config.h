#pragma once

#include <filesystem>
#include <memory>

#include "strict_json/source.h"

namespace mnist_train::cli {

/// The config that a checkpoint was trained with, from its header alone. Throws Error(kConfig) when
/// the file is weights without a config, and Error(kCheckpoint) when it cannot be read.
std::shared_ptr<const strict_json::Source> config_of_checkpoint(const std::filesystem::path& path);

}  // namespace mnist_train::cli
