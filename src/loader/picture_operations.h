#pragma once

#include <array>
#include <cstdint>

#include "data/epoch_draws.h"

namespace mnist_train::loader {

/// An image in memory: planes of `height` rows, one plane per channel.
struct Planes {
  const std::uint8_t* values;
  std::int64_t channels;
  std::int64_t height;
  std::int64_t width;

  std::int64_t pixels() const { return height * width; }
};

/// An affine map from output to input pixels, relative to the centre. Input coordinates are in
/// units of half the image's size: x = [0] * x' + [1] * y' + [2], with x' and y' in pixels; y uses
/// [3] to [5].
using AffineMap = std::array<float, 6>;

/// Returns the map of a shear, translation or rotation, or the identity for other operations.
AffineMap affine_map(const data::PictureChange& change, settings::ImageSize size);

/// Writes the changed image to `out`, which may be the input unless the operation is sharpness or
/// has an `affine_map`. Images with 3 channels are RGB; others are grayscale, on which saturation
/// and hue have no effect. Computes in the same float precision as
/// torchvision.transforms.v2.functional.
void change_picture(data::PictureOperation operation, float magnitude, const Planes& image,
                    std::uint8_t* out);

/// Writes the nearest input pixel for each output pixel, or 0 outside the image.
void map_picture(const AffineMap& map, const Planes& image, std::uint8_t* out);

}  // namespace mnist_train::loader
