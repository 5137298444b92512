#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "cli/command_line.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

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
