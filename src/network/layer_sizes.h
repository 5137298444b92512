#pragma once

#include "network/network.h"

namespace mnist_train::network {

/// Infers what a layer without inner layers gives, its parameters and multiply-adds from what it
/// takes in, and puts sizes in the place of "classes". Throws LayerError.
void infer_leaf(SizedLayer& sized, const ImageShape& images);

}  // namespace mnist_train::network
