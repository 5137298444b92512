#pragma once

#include <map>
#include <string>

#include "cli/command_line.h"
#include "cli/config_layers.h"
#include "network/network.h"

namespace mnist_train::cli {

/// Returns the sizes of the config's network, which must have layers, for the images of its data
/// set; its files are opened where only they tell the images' size. Throws Error(kConfig) with the
/// place in the config of the layer that does not fit, and Error(kData).
network::Network checked_network(const LayeredConfig& layered);

/// Refuses a network whose layers do not fit, before any process is started. Where only the files
/// of a data set tell what the images are, a run opens them for the config's own lists, and reads
/// the first one's header for networks with a name. Throws as `checked_network`.
void check_network(const CommandLine& line, const LayeredConfig& layered);

/// Returns FILE:LINE:COLUMN of the keys that name a network of the user's own, and of its options,
/// by their pointers: its mistakes are found by the processes, which do not have the files' text.
std::map<std::string, std::string> network_positions(const LayeredConfig& layered);

/// Returns what `describe` prints: the network as a table for people, or as a JSON object with the
/// list of layers that a config could have. Throws as `checked_network`.
std::string describe(const CommandLine& line, const LayeredConfig& layered);

}  // namespace mnist_train::cli
