#pragma once

#include <memory>

#include "cli/command_line.h"
#include "settings/run_config.h"
#include "strict_json/document.h"
#include "strict_json/source.h"

namespace mnist_train::cli {

/// Returns the lowest layer of the config: the file that the command names, else the config that a
/// checkpoint was trained with where one is evaluated; null where there is neither. Throws
/// Error(kConfig) when a file holds weights without a config, and Error(kCheckpoint) when it cannot
/// be read.
std::shared_ptr<const strict_json::Source> lowest_layer(const CommandLine& line);

/// A config, and the document that its layers make together, for messages about places in it.
struct LayeredConfig {
  settings::RunConfig config;
  strict_json::Node document;
};

/// Reads the config in layers, of which later ones win: defaults, `file` (may be null), the
/// variable MNIST_TRAIN_SET, --output where it names a run folder, --nproc-per-node, --set. Throws
/// Error(kConfig) with all that is wrong in any of them.
LayeredConfig read_layers(const CommandLine& line, std::shared_ptr<const strict_json::Source> file);

}  // namespace mnist_train::cli
