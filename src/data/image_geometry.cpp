#include "data/image_geometry.h"

#include <utility>

#include "base/error.h"

namespace mnist_train::data {

std::string ImageGeometry::text() const {
  return std::to_string(channels) + " x " + std::to_string(height) + " x " + std::to_string(width);
}

ImageGeometry wanted_geometry(ImageGeometry own, const settings::DataOptions& options) {
  if (options.channels) {
    own.channels = *options.channels;
    own.fits_channels = true;
  }
  if (options.size) {
    own.height = options.size->height;
    own.width = options.size->width;
    own.fits_size = true;
  }
  return own;
}

void require_geometry(const ImageGeometry& own, const ImageGeometry& wanted,
                      const std::string& name) {
  if (!wanted.fits_channels && own.channels != wanted.channels) {
    throw Error(ExitCode::kData,
                name + ": " + (own.channels == 1 ? "gray among colour" : "colour among gray") +
                    " images; data.channels brings all to one kind");
  }
  if (!wanted.fits_size && (own.height != wanted.height || own.width != wanted.width)) {
    throw Error(ExitCode::kData,
                name + ": " + std::to_string(own.height) + " x " + std::to_string(own.width) +
                    " pixels among images of " + std::to_string(wanted.height) + " x " +
                    std::to_string(wanted.width) + "; data.size brings all to one size");
  }
}

void fit(imaging::Image image, const ImageGeometry& geometry, const std::string& name,
         std::uint8_t* out) {
  require_geometry({image.channels, image.height, image.width}, geometry, name);
  const imaging::Image fitted = imaging::resize(
      imaging::with_channels(std::move(image), geometry.channels), geometry.height, geometry.width);
  const auto channels = static_cast<std::size_t>(fitted.channels);
  const std::size_t pixels = fitted.pixels.size() / channels;
  for (std::size_t channel = 0; channel < channels; ++channel) {
    for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
      *out++ = fitted.pixels[pixel * channels + channel];
    }
  }
}

imaging::Image from_planes(std::span<const std::uint8_t> planes, const ImageGeometry& geometry) {
  imaging::Image image{geometry.height, geometry.width, geometry.channels, {}};
  image.pixels.resize(planes.size());
  const auto channels = static_cast<std::size_t>(geometry.channels);
  const std::size_t pixels = planes.size() / channels;
  for (std::size_t channel = 0; channel < channels; ++channel) {
    for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
      image.pixels[pixel * channels + channel] = planes[channel * pixels + pixel];
    }
  }
  return image;
}

}  // namespace mnist_train::data
