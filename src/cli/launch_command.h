#pragma once

#include "cli/command_line.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

/// Carries out train, evaluate, predict or export: alone, with processes of its own, or as a worker
/// of somebody else's launcher. Gives the exit code.
int launch_command(const CommandLine& line, const settings::RunConfig& config);

}  // namespace mnist_train::cli
