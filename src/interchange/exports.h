#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "network/network.h"
#include "settings/data_options.h"

namespace mnist_train::interchange {

/// Returns a tensor of the network's state_dict by its name, in row-major order.
using FindWeight = std::function<std::span<const float>(const std::string& name)>;

/// How a picture becomes the network's input, and what its outputs are called.
struct Pictures {
  settings::ImageSize size;  // that `fit` brings pictures to
  settings::Fit fit = settings::Fit::kStretch;
  settings::Background background = settings::kWhiteBackground;
  settings::AugmentList augment;  // for images: see settings::list_for_images
  settings::NormalizeOptions normalize;
  std::vector<std::string> class_names;  // one for each output
};

/// Returns an ONNX file of the network in evaluation mode, with its weights: from `images`
/// [N,C,H,W], normalised, to `logits` [N,classes]; with `takes_bytes` from uint8 to
/// `probabilities`. Batch norms are folded into the layers before them. Throws network::LayerError
/// for a layer that ONNX cannot express, and Error(kConfig) if the file would exceed 2 GiB.
std::string onnx_model(const network::Network& net, const FindWeight& find_weight,
                       const Pictures& pictures, bool takes_bytes);

/// The text of exported_module.py.
extern const char* const kExportedModule;

/// Returns the source of a Python module whose `make_model()` returns the network as a module of
/// torch.nn with the same state_dict, `preprocess(path)` its input, and `CLASSES` the names of its
/// outputs. The docstring explains how to use them.
std::string python_module(const network::Network& net, const Pictures& pictures);

/// Returns a sentence on the shapes of input and output and the normalisation of pixels.
std::string input_text(const network::Network& net, const settings::NormalizeOptions& normalize);

}  // namespace mnist_train::interchange
