#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "network/network.h"
#include "settings/data_options.h"

namespace mnist_train::interchange {

/// Returns a tensor from the network's state_dict by name, in row-major order.
using FindWeight = std::function<std::span<const float>(const std::string& name)>;

/// How pictures are converted to the network's input, and the names of its outputs.
struct Pictures {
  settings::ImageSize size;  // the size to which `fit` resizes pictures
  settings::Fit fit = settings::Fit::kStretch;
  settings::Background background = settings::kWhiteBackground;
  settings::AugmentList augment;  // as returned by settings::list_for_images
  settings::NormalizeOptions normalize;
  std::vector<std::string> class_names;  // one per output
};

/// Returns an ONNX file of the network in evaluation mode, with its weights. The model maps
/// normalised `images` [N,C,H,W] to `logits` [N,classes] or, with `takes_bytes`, uint8 images to
/// `probabilities`. Batch norms are folded into directly preceding convolutions and linear layers.
/// Throws network::LayerError if ONNX cannot express a layer, and Error(kConfig) above 2 GiB.
std::string onnx_model(const network::Network& net, const FindWeight& find_weight,
                       const Pictures& pictures, bool takes_bytes);

/// The text of exported_module.py.
extern const char* const kModuleTemplate;

/// Returns the source of a Python module in which `make_model()` returns the network as a torch.nn
/// module with the same state_dict, `preprocess(path)` returns its input, and `CLASSES` lists the
/// names of its outputs. The docstring explains their use.
std::string python_module(const network::Network& net, const Pictures& pictures);

/// Returns a sentence about the shapes of the input and output and the normalisation of pixels.
std::string input_text(const network::Network& net, const settings::NormalizeOptions& normalize);

}  // namespace mnist_train::interchange
