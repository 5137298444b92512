#pragma once

#include <string>

#include "launch/job.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

/// Starts this machine's ranks and supervises them; a training run that lost a process goes on from
/// its newest checkpoint, `launch.max_restarts` times. Gives the exit code; a failure has been
/// printed by then. Throws Error before ranks start, and Error(kData) when the data cannot be read.
int run_own_launcher(launch::Job job, const settings::RunConfig& config,
                     const std::string& config_name);

}  // namespace mnist_train::cli
