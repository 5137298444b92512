#pragma once

#include <map>
#include <string>

#include "cli/command_line.h"
#include "cli/config_layers.h"

namespace mnist_train::cli {

/// Refuses a network whose layers do not fit before any process starts, if the image size is known:
/// by the data set's name or, for `model.layers`, from its files. Throws ConfigKeyError, and
/// Error(kData) if the files cannot be read.
void check_network(const CommandLine& line, const settings::RunConfig& config);

/// Returns FILE:LINE:COLUMN of the config's keys on network and data, by pointer, for mistakes that
/// show only when these are opened. Empty if the config comes from a checkpoint, since the user did
/// not write its text.
std::map<std::string, std::string> key_positions(const CommandLine& line,
                                                 const LayeredConfig& layered);

/// Returns the output of `describe` for a network of layers: a table for people, or a JSON object
/// that also has the layers in the form of `model.layers`. Throws as `check_network` does.
std::string describe(const CommandLine& line, const settings::RunConfig& config);

}  // namespace mnist_train::cli
