#pragma once

#include <string>

#include "cli/command_line.h"
#include "cli/config_layers.h"

namespace mnist_train::cli {

/// Returns the name of the command's first config, which names the folder of its runs.
std::string name_of_config(const CommandLine& line);

/// Runs a command in workers. Under another launcher this process becomes one of them; else it
/// starts and supervises this machine's ranks, and a training that lost a process resumes up to
/// `launch.max_restarts` times. Returns the exit code; a failure of ranks has been printed by then.
/// Throws Error for mistakes found before processes start.
int launch_command(const CommandLine& line, const LayeredConfig& layered);

}  // namespace mnist_train::cli
