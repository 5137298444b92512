#pragma once

#include <array>
#include <cstdint>

#include "data/epoch_draws.h"

namespace mnist_train::loader {

/// An image in memory: planes of `height` rows, one per channel.
template <class T>
struct Planes {
  const T* values;
  std::int64_t channels;
  std::int64_t height;
  std::int64_t width;

  std::int64_t pixels() const { return height * width; }
};
using BytePlanes = Planes<std::uint8_t>;

/// An affine map from pixels of the result to the image, both counted from the centre in halves of
/// the image's size: x = [0] * x' + [1] * y' + [2] with x' and y' in pixels, y by the rest.
using AffineMap = std::array<float, 6>;

/// Returns the map of a shear, translation or rotation; that of an identity for other operations.
AffineMap affine_map(const data::PictureChange& change, settings::ImageSize size);

/// Writes the changed image, which may be the image itself unless the operation is sharpness or has
/// an `affine_map`. Images of 3 channels are RGB; others are gray, which saturation and hue leave
/// as they are. Computes in the same floats as torchvision.transforms.v2.functional.
void change_picture(data::PictureOperation operation, float magnitude, const BytePlanes& image,
                    std::uint8_t* out);

/// Writes the nearest pixels of the image, 0 from outside.
void map_picture(const AffineMap& map, const BytePlanes& image, std::uint8_t* out);

/// Resizes a window of the image, bilinear with antialiasing: the pixels of the result are
/// rounded means, weighted by a triangle. Values are u8 or f32.
template <class T>
void resize_window(const Planes<T>& image, const data::PixelBox& window, settings::ImageSize size,
                   T* out);

}  // namespace mnist_train::loader
