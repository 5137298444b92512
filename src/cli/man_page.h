#pragma once

#include <string>

#include "cli/cli11.h"

namespace mnist_train::cli {

/// The man page in roff, section 1: every command with its flags and examples as the parser knows
/// them, exit codes, environment and files.
std::string man_page(const CLI::App& parser);

}  // namespace mnist_train::cli
