#pragma once

#include <functional>
#include <span>
#include <string>

#include "network/network.h"
#include "settings/augment_options.h"

namespace mnist_train::interchange {

/// Returns a tensor of the network's state_dict by its name, in row-major order.
using FindWeight = std::function<std::span<const float>(const std::string& name)>;

/// Returns an ONNX file of the network in evaluation mode, with its weights: from `images`
/// [N,C,H,W], normalised by `normalize`, to `logits` [N,classes]. Throws network::LayerError for a
/// layer that ONNX cannot express, and Error(kConfig) if the file would exceed 2 GiB.
std::string onnx_model(const network::Network& net, const FindWeight& find_weight,
                       const settings::NormalizeOptions& normalize);

/// Returns the source of a Python module whose `make_model()` returns the network as a module of
/// torch.nn with the same state_dict. The docstring explains how to load the weights and how images
/// are normalised.
std::string python_module(const network::Network& net, const settings::NormalizeOptions& normalize);

/// Returns a sentence on the shapes of input and output and the normalisation of pixels.
std::string input_text(const network::Network& net, const settings::NormalizeOptions& normalize);

}  // namespace mnist_train::interchange
