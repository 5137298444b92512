#pragma once

#include <string>

#include "network/network.h"
#include "settings/augment_options.h"

namespace mnist_train::interchange {

/// Returns a sentence for people who call an exported network: the shape of its input, what makes
/// it of an image's pixels, and the shape of its output.
std::string input_text(const network::Network& net, const settings::NormalizeOptions& normalize);

}  // namespace mnist_train::interchange
