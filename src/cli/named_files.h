#pragma once

#include "cli/command_line.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

/// Looks at the files that a command names before any process is started and any folder is made:
/// weights and checkpoints must be there to read, and the folder that an export goes to. Throws
/// Error(kCheckpoint).
void check_named_files(const CommandLine& line, const settings::RunConfig& config);

}  // namespace mnist_train::cli
