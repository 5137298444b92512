#pragma once

#include "cli/command_line.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

/// Runs a command that workers carry out: with processes of its own, or as a worker of somebody
/// else's launcher. Returns the exit code. Throws Error for what is wrong before processes start.
int launch_command(const CommandLine& line, const settings::RunConfig& config);

}  // namespace mnist_train::cli
