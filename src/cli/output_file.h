#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "cli/command_line.h"

namespace mnist_train::cli {

/// Returns a message if the extension of --output belongs to another kind of file than the one that
/// export, preview or report would write.
std::optional<std::string> misused_extension(const CommandLine& line);

/// Throws Error(kConfig) if no file of this name can be made, or if it is a file that a run has
/// written for itself, such as its config.json or a checkpoint.
void check_output_file(const std::filesystem::path& path);

}  // namespace mnist_train::cli
