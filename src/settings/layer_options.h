#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "settings/layer_kinds.h"

namespace mnist_train::settings {

/// One layer of a network.
struct Layer;
using LayerList = std::vector<Layer>;

/// Layers one after the other.
struct SequentialLayer {
  LayerList layers;

  bool operator==(const SequentialLayer&) const;
};

/// The sum of what `layers` and `shortcut` make of the same input, the input itself where there is
/// no shortcut.
struct ResidualLayer {
  LayerList layers;
  LayerList shortcut;
  std::optional<Activation> activation;  // of the sum
  /// Where it is not empty: the modules with weights, which the block holds itself, in the order of
  /// its state_dict, without "layers." and "shortcut." before their names.
  std::vector<std::string> modules;

  bool operator==(const ResidualLayer&) const;
};

/// `layers` several times, with weights of their own each time.
struct RepeatLayer {
  std::int64_t times = 1;
  LayerList layers;

  bool operator==(const RepeatLayer&) const;
};

using LayerKind =
    std::variant<Conv2dLayer, LinearLayer, BatchNormLayer, GroupNormLayer, ActivationLayer,
                 MaxPool2dLayer, AvgPool2dLayer, AdaptiveAvgPool2dLayer, FlattenLayer, DropoutLayer,
                 SequentialLayer, ResidualLayer, RepeatLayer>;

struct Layer {
  std::string as;  // the module's name; empty: its index in the list
  LayerKind kind;

  bool operator==(const Layer&) const;
};

/// Returns the layer's name in the config, such as "conv2d".
std::string name_of(const LayerKind& kind);

/// Returns the list as JSON text, as it stands in a config.
std::string write_layers(const LayerList& layers);

}  // namespace mnist_train::settings
