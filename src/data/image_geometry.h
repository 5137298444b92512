#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "imaging/image.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// The channels and the size of images, and whether images of others are brought to them.
struct ImageGeometry {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  bool fits_channels = false;  // data.channels asks for it; else other channels are an error
  bool fits_size = false;      // the same of data.size

  std::int64_t bytes() const { return channels * height * width; }
  bool same_shape(const ImageGeometry& other) const {
    return channels == other.channels && height == other.height && width == other.width;
  }
  /// Returns channels, height and width for messages, such as "3 x 244 x 244".
  std::string text() const;
};

/// Returns what images of the geometry `own` are brought to by data.channels and data.size.
ImageGeometry wanted_geometry(ImageGeometry own, const settings::DataOptions& options);

/// Throws Error(kData) with `name` where an image of `own` geometry differs from what is wanted,
/// and the options do not ask to change it.
void require_geometry(const ImageGeometry& own, const ImageGeometry& wanted,
                      const std::string& name);

/// Brings an image to the geometry and writes it as planes [C,H,W] to `out`. Throws Error(kData)
/// as require_geometry does.
void fit(imaging::Image image, const ImageGeometry& geometry, const std::string& name,
         std::uint8_t* out);

/// Returns the image whose planes [C,H,W] these are.
imaging::Image from_planes(std::span<const std::uint8_t> planes, const ImageGeometry& geometry);

}  // namespace mnist_train::data
