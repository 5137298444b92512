#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "settings/run_config.h"
#include "strict_json/document.h"
#include "strict_json/source.h"

namespace mnist_train::cli {

/// Returns the names of the configs that come with the program, sorted: those in the folder
/// `configs` of an installation, the repository or an unpacked bundle.
std::vector<std::string> shipped_configs();

/// Returns the file for `--config name`: `name` itself if it is a file, a path or "-", else the
/// config of that name that comes with the program ("mnist" or "mnist.json"). Throws Error(kConfig)
/// that lists the shipped ones if there is neither.
std::string find_config(const std::string& name);

using ConfigFiles = std::vector<std::shared_ptr<const strict_json::Source>>;

/// Returns the command's config files in order. Without any, returns the config that the checkpoint
/// holds or that is stored beside the weights as config.json, if the command needs the model.
/// Throws Error(kConfig) if a file cannot be read or weights have no config, and Error(kCheckpoint)
/// if a checkpoint cannot be read.
ConfigFiles config_files(const CommandLine& line);

/// A config, and its layers merged into one document, for messages about places in it.
struct LayeredConfig {
  settings::RunConfig config;
  strict_json::Node document;
};

/// Reads the config in layers, of which later ones win: defaults, `files` in order, the variable
/// MNIST_TRAIN_SET, --output if it is a run folder, --nproc-per-node, --set. Throws Error(kConfig)
/// with all mistakes of all layers.
LayeredConfig read_layers(const CommandLine& line, const ConfigFiles& files);

}  // namespace mnist_train::cli
