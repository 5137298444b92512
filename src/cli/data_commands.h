#pragma once

#include <string>

#include "cli/command_line.h"

namespace mnist_train::cli {

/// Turns this process into mnist-train-fetch, which lies beside it. Throws Error(kConfig) where it
/// is not there.
[[noreturn]] void run_fetch(const CommandLine& line);

/// Gives what goes to standard output: {"format", "train", "test", "folder"}. Throws Error.
std::string run_convert(const CommandLine& line);

}  // namespace mnist_train::cli
