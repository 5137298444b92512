#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "settings/data_options.h"
#include "settings/model_options.h"

namespace mnist_train::network {

/// The image shape and number of classes of a data set.
struct ImageShape {
  std::int64_t channels = 1;
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t classes = 10;
};

/// Returns the shape of a named data set's images as read, or nullopt for other data.
std::optional<ImageShape> known_images(const settings::DataOptions& options);

/// Returns the shape of images after `data.augment`. Throws Error(kConfig) if a crop does not fit.
ImageShape model_input(const settings::DataOptions& options, ImageShape images);

/// The shape of activations for one image: [C,H,W], or [F] after flattening.
struct SampleShape {
  std::int64_t channels = 0;  // or features
  std::int64_t height = 1;
  std::int64_t width = 1;
  bool is_image = false;

  std::int64_t elements() const { return channels * height * width; }
  bool operator==(const SampleShape&) const = default;
};

/// Returns the shape of a batch for messages: "[N,20,12,12]", "[N,500]".
std::string batch_text(const SampleShape& shape);

/// A layer with inferred sizes.
struct SizedLayer {
  settings::LayerKind kind;  // without inner layers; "classes" is replaced by the number
  std::string name;          // within its parent module
  std::string path;          // including its parents: "resnet_block1.0.conv1"
  std::string pointer;       // to its entry in the list: "/3/layers/0"
  SampleShape in;
  SampleShape out;
  std::int64_t parameters = 0;
  std::int64_t multiply_adds = 0;    // in convolutions and linear layers, per image
  std::vector<SizedLayer> layers;    // in sequential, residual, gate, repeat (all repetitions)
  std::vector<SizedLayer> shortcut;  // in residual

  /// Returns the names of the layer's own parameters within its module: "weight", "bias".
  std::vector<std::string> parameter_names() const;
};

/// Returns the names of all parameters in the layers, as in a state_dict.
std::vector<std::string> parameter_names(const std::vector<SizedLayer>& layers);

struct Network {
  ImageShape images;
  std::vector<SizedLayer> layers;
  std::int64_t parameters = 0;
  std::int64_t multiply_adds = 0;  // per image
};

/// A layer that does not fit its input, or another error in a list of layers.
class LayerError : public ConfigKeyError {
 public:
  /// `pointer`: to the entry within the list, such as "/3/layers/0".
  LayerError(const std::string& pointer, std::string reason)
      : ConfigKeyError("/model/layers" + pointer + ": " + reason), reason_(std::move(reason)) {}

  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// Infers all sizes in a network from the image size. Throws LayerError.
Network infer_sizes(const settings::LayerList& layers, const ImageShape& images);

/// Returns the layers of the built-in network for images of this size, or the config's layers.
/// Requires options.has_layers().
settings::LayerList layers_of(const settings::ModelOptions& options, const ImageShape& images);

/// Returns the network of `options` for these images. Requires options.has_layers(). Throws
/// LayerError, or ConfigKeyError for a built-in network that does not fit the images.
Network make_network(const settings::ModelOptions& options, const ImageShape& images);

/// Initial weights that depend on the network.
struct InitDefaults {
  // With `model.init` "normal":
  double normal_std = 0.1;
  bool normal_draws_biases = true;  // otherwise they keep PyTorch's values
  // With `model.init` "default":
  bool kaiming_convolutions = false;      // kaiming_normal with mode fan_out
  std::optional<double> linear_std = {};  // of a normal distribution, with biases 0
};
InitDefaults init_defaults(const settings::ModelOptions& options);

}  // namespace mnist_train::network
