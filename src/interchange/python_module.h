#pragma once

#include <string>

#include "network/network.h"
#include "settings/augment_options.h"

namespace mnist_train::interchange {

/// Returns the source of a Python module whose `make_model()` returns the network as a module of
/// torch.nn with the same state_dict. Its docstring says how the weights are loaded and that the
/// network takes images normalised by `normalize`.
std::string python_module(const network::Network& net, const settings::NormalizeOptions& normalize);

}  // namespace mnist_train::interchange
