#pragma once

#include "network/network.h"

namespace mnist_train::interchange {

/// The zeros, or whatever a layer pads with, on the sides of an image.
struct SidePadding {
  settings::ImageSize begin;  // above, left
  settings::ImageSize end;    // below, right

  bool operator==(const SidePadding&) const = default;
};

/// Returns the padding with which windows of max-pooling that never reach beyond it are the
/// layer's, whatever its `ceil_mode`.
SidePadding padding_of(const network::SizedLayer& sized, const settings::MaxPool2dLayer& layer);
/// Returns the same for average pooling.
SidePadding padding_of(const network::SizedLayer& sized, const settings::AvgPool2dLayer& layer);

/// Returns whether a window lies in the padding alone, which takes dilation.
bool has_empty_window(const network::SizedLayer& sized, const settings::MaxPool2dLayer& layer);

}  // namespace mnist_train::interchange
