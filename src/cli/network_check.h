#pragma once

#include <map>
#include <string>

#include "cli/command_line.h"
#include "cli/config_layers.h"
#include "network/network.h"

namespace mnist_train::cli {

/// Returns the sizes of the config's network, which must have layers, for the images of its data
/// set; its files are opened where only they tell the images' size. Throws ConfigKeyError where a
/// layer does not fit, and Error(kData).
network::Network checked_network(const settings::RunConfig& config);

/// Refuses a network whose layers do not fit before any process starts, if the image size is known:
/// by the data set's name, or, for `model.layers`, from its files. Throws as `checked_network`.
void check_network(const CommandLine& line, const settings::RunConfig& config);

/// Returns FILE:LINE:COLUMN of what the config's files and flags say of network and data, by
/// pointer, for mistakes that show only when these are opened. Empty where the config is a
/// checkpoint's, whose text nobody wrote.
std::map<std::string, std::string> key_positions(const CommandLine& line,
                                                 const LayeredConfig& layered);

/// Returns what `describe` prints: the network as a table for people, or as a JSON object with the
/// list of layers that a config could have. Throws as `checked_network`.
std::string describe(const CommandLine& line, const settings::RunConfig& config);

}  // namespace mnist_train::cli
