#pragma once

#include <string>

#include "launch/job.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

/// Starts this machine's ranks and supervises them. A training run that lost a process resumes from
/// its newest checkpoint, up to `launch.max_restarts` times. Returns the exit code; a failure has
/// been printed by then. Throws Error for what is wrong before ranks start.
int run_own_launcher(launch::Job job, const settings::RunConfig& config,
                     const std::string& config_name);

}  // namespace mnist_train::cli
