#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "cli/command_line.h"

namespace mnist_train::cli {

/// Returns what is wrong with the extension of --output where export, preview or report would write
/// another kind of file under it; nothing where it fits, is unknown or missing.
std::optional<std::string> misused_extension(const CommandLine& line);

/// Throws Error(kConfig) where no file of this name can be made, and where it is one that a run has
/// written for itself, such as its config.json or a checkpoint.
void check_output_file(const std::filesystem::path& path);

}  // namespace mnist_train::cli
