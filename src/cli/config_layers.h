#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "settings/run_config.h"
#include "strict_json/document.h"

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

/// Returns FILE:LINE:COLUMN of the config's keys on network and data, by pointer, for mistakes that
/// show only when these are opened. Empty if the config comes from a checkpoint, since the user did
/// not write its text.
std::map<std::string, std::string> key_positions(const CommandLine& line,
                                                 const LayeredConfig& layered);

/// Returns metadata and seal from the header of a safetensors file; no object if there is no valid
/// header.
nlohmann::json parse_header(std::span<const std::uint8_t> file);

/// Replaces a run folder in --checkpoint or --resume by one of its files, and logs which one: for
/// --checkpoint the best checkpoint, else the newest, else model.pt; for --resume the newest
/// checkpoint. Throws Error(kCheckpoint) for a folder without any, and for a damaged checkpoint,
/// with an intact one from the same folder.
void find_checkpoints(CommandLine& line);

/// Replaces a run folder in `model.weights` as `find_checkpoints` does for --checkpoint, and throws
/// likewise.
void find_model_weights(settings::RunConfig& config);

/// Returns a message if the extension of --output belongs to another kind of file than the one that
/// export, preview or report would write.
std::optional<std::string> misused_extension(const CommandLine& line);

/// Throws Error(kConfig) if no file of this name can be made, or if it is a file that a run has
/// written for itself, such as its config.json or a checkpoint.
void check_output_file(const std::filesystem::path& path);

}  // namespace mnist_train::cli
