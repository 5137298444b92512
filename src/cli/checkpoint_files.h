#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/command_line.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

/// Returns metadata and seal from the header of a safetensors file; no object if there is no valid
/// header.
nlohmann::json parse_header(std::span<const std::uint8_t> file);

/// Replaces a run folder in --checkpoint or --resume by one of its files, and logs which one: for
/// --checkpoint the best checkpoint, else the newest, else model.pt; for --resume the newest
/// checkpoint. Throws Error(kCheckpoint) for a folder without any, and for a damaged checkpoint,
/// with the command that uses an intact one from the same folder.
void find_checkpoints(CommandLine& line);

/// Replaces a run folder in `model.weights` as `find_checkpoints` does for --checkpoint, and throws
/// likewise.
void find_model_weights(const CommandLine& line, settings::RunConfig& config);

}  // namespace mnist_train::cli
