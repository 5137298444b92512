#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/command_line.h"
#include "settings/run_config.h"

namespace mnist_train::cli {

/// Returns metadata and seal from the header of a safetensors file; no object if the bytes have no
/// header that can be read.
nlohmann::json parse_header(std::span<const std::uint8_t> file);

/// Replaces a run folder that --checkpoint or --resume names by one of its files, and says which:
/// for --checkpoint by its best checkpoint, else its newest one, else its model.pt; for --resume by
/// its newest checkpoint. Throws Error(kCheckpoint) for a folder without any, and for a file that
/// is a damaged checkpoint, with the command that takes one beside it that is whole.
void find_checkpoints(CommandLine& line);

/// Replaces a run folder that `model.weights` names in the same way as one of --checkpoint. Throws
/// Error(kCheckpoint) as `find_checkpoints` does.
void find_model_weights(const CommandLine& line, settings::RunConfig& config);

}  // namespace mnist_train::cli
