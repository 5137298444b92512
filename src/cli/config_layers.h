#pragma once

#include <memory>
#include <vector>

#include "cli/command_line.h"
#include "settings/run_config.h"
#include "strict_json/document.h"
#include "strict_json/source.h"

namespace mnist_train::cli {

using ConfigFiles = std::vector<std::shared_ptr<const strict_json::Source>>;

/// Returns the config files that the command names, in their order, else the config that a
/// checkpoint was trained with where its model is needed, which it holds itself or which lies as
/// config.json beside it; nothing where there is neither. Throws Error(kConfig) when a file cannot
/// be read or weights have no config, and Error(kCheckpoint) when a checkpoint cannot be read.
ConfigFiles config_files(const CommandLine& line);

/// A config, and the document that its layers make together, for messages about places in it.
struct LayeredConfig {
  settings::RunConfig config;
  strict_json::Node document;
};

/// Reads the config in layers, of which later ones win: defaults, `files` in their order, the
/// variable MNIST_TRAIN_SET, --output where it names a run folder, --nproc-per-node, --set. Throws
/// Error(kConfig) with all that is wrong in any of them.
LayeredConfig read_layers(const CommandLine& line, const ConfigFiles& files);

}  // namespace mnist_train::cli
