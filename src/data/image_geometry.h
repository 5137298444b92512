#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "imaging/image.h"
#include "settings/data_options.h"

namespace mnist_train::data {

/// What images are brought to.
struct ImageGeometry {
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  // Whether the options ask for it; else images have it by themselves, or are bad.
  bool fits_channels = false;
  bool fits_size = false;

  std::int64_t bytes() const { return channels * height * width; }
};

/// `own` with what data.channels and data.size ask for.
ImageGeometry wanted_geometry(ImageGeometry own, const settings::DataOptions& options);

/// Throws Error(kData) with `name` where an image of that shape has another geometry than wanted,
/// and nobody asked to change it.
void require_geometry(std::int64_t channels, std::int64_t height, std::int64_t width,
                      const ImageGeometry& geometry, const std::string& name);

/// Brings an image to the geometry and writes it as planes [channels,height,width] to `out`. Throws
/// as require_geometry.
void fit(imaging::Image image, const ImageGeometry& geometry, const std::string& name,
         std::uint8_t* out);

/// "3 x 244 x 244".
std::string geometry_text(std::int64_t channels, std::int64_t height, std::int64_t width);

/// Planes to pixels.
imaging::Image from_planes(std::span<const std::uint8_t> planes, std::int64_t channels,
                           std::int64_t height, std::int64_t width);

}  // namespace mnist_train::data
