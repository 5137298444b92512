#pragma once

#include <optional>

#include "network/network.h"
#include "settings/run_config.h"
#include "strict_json/document.h"

namespace mnist_train::cli {

/// Returns the shape of the images that the model gets, where the config says it without the files
/// of the data set being opened; else nothing.
std::optional<network::ImageShape> configured_shape(const settings::RunConfig& config);

/// Returns the same from the files of the data set. Throws Error(kData).
network::ImageShape read_shape(const settings::RunConfig& config);

/// Infers the sizes of the config's network, which must have layers. Throws Error(kConfig) with the
/// place in `document` of the layer that does not fit.
network::Network checked_network(const settings::RunConfig& config,
                                 const network::ImageShape& images,
                                 const strict_json::Node& document);

/// Returns the network as a table for people: for each layer its name, output shape, parameters and
/// multiply-adds, then their sums.
std::string describe_as_text(const network::Network& described);

/// Returns the same as a JSON object, with the list of layers that the config could have.
std::string describe_as_json(const network::Network& described, const settings::LayerList& layers);

}  // namespace mnist_train::cli
