#pragma once

#include <memory>

#include "cli/command_line.h"
#include "settings/run_config.h"
#include "strict_json/source.h"

namespace mnist_train::cli {

/// The config in layers, later ones win: defaults, `file` (none: null), the environment's
/// MNIST_TRAIN_SET, --output where it names a run folder, --nproc-per-node, --set. Throws
/// Error(kConfig) with all that is wrong in any of them.
settings::RunConfig read_layers(const CommandLine& line,
                                std::shared_ptr<const strict_json::Source> file);

}  // namespace mnist_train::cli
