#pragma once

#include <memory>

#include "cli/command_line.h"
#include "config/source.h"
#include "options/run_config.h"

namespace mnist_train::cli {

/// The config in layers, later ones win: defaults, `file` (none: null), the environment's
/// MNIST_TRAIN_SET, --output where it names a run folder, --nproc-per-node, --set. Throws
/// Error(kConfig) with all that is wrong in any of them.
options::RunConfig read_layers(const CommandLine& line, std::shared_ptr<const config::Source> file);

}  // namespace mnist_train::cli
