#pragma once

#include <string>

#include "cli/command_line.h"
#include "cli/config_layers.h"
#include "launch/job.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

/// Returns the name of the config that the command names first, which its runs' folders are named
/// by.
std::string name_of_config(const CommandLine& line);

/// Runs a command that workers carry out: with processes of its own, or as a worker of somebody
/// else's launcher. Returns the exit code. Throws Error for what is wrong before processes start.
int launch_command(const CommandLine& line, const LayeredConfig& layered);

/// Starts this machine's ranks and supervises them. A training run that lost a process resumes from
/// its newest checkpoint, up to `launch.max_restarts` times. Returns the exit code; a failure has
/// been printed by then. Throws Error for what is wrong before ranks start.
int run_own_launcher(launch::Job job, const settings::RunConfig& config,
                     const std::string& config_name);

}  // namespace mnist_train::cli
