#pragma once

#include <functional>
#include <span>
#include <string>

#include "network/network.h"
#include "settings/augment_options.h"

namespace mnist_train::interchange {

/// Returns a tensor of the network's state_dict by its name, in row-major order.
using FindWeight = std::function<std::span<const float>(const std::string& name)>;

/// Returns an ONNX file that computes what the network computes in evaluation, with its weights:
/// `images` [N,C,H,W], normalised by `normalize`, to `logits` [N,classes]. Throws
/// network::LayerError for a layer that ONNX cannot express, and Error(kConfig) where the file
/// would be larger than such files can be.
std::string onnx_model(const network::Network& net, const FindWeight& find_weight,
                       const settings::NormalizeOptions& normalize);

}  // namespace mnist_train::interchange
