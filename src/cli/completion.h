#pragma once

#include <string>

#include "cli/cli11.h"

namespace mnist_train::cli {

/// A script that completes commands, flags, their choices, files and the config's keys behind
/// `--set`, for "bash" or "zsh".
std::string completion_script(const CLI::App& parser, const std::string& shell);

}  // namespace mnist_train::cli
