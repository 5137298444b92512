#include "data/image_geometry.h"

#include <utility>

#include "base/error.h"

namespace mnist_train::data {

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

void require_geometry(std::int64_t channels, std::int64_t height, std::int64_t width,
                      const ImageGeometry& geometry, const std::string& name) {
  if (!geometry.fits_channels && channels != geometry.channels) {
    throw Error(ExitCode::kData, name + ": " +
                                     (channels == 1 ? "gray among colour" : "colour among gray") +
                                     " images; data.channels says what all are brought to");
  }
  if (!geometry.fits_size && (height != geometry.height || width != geometry.width)) {
    throw Error(ExitCode::kData,
                name + ": " + std::to_string(height) + " x " + std::to_string(width) +
                    " pixels among images of " + std::to_string(geometry.height) + " x " +
                    std::to_string(geometry.width) + "; data.size says what all are brought to");
  }
}

void fit(imaging::Image image, const ImageGeometry& geometry, const std::string& name,
         std::uint8_t* out) {
  require_geometry(image.channels, image.height, image.width, geometry, name);
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

std::string geometry_text(std::int64_t channels, std::int64_t height, std::int64_t width) {
  return std::to_string(channels) + " x " + std::to_string(height) + " x " + std::to_string(width);
}

imaging::Image from_planes(std::span<const std::uint8_t> planes, std::int64_t channels,
                           std::int64_t height, std::int64_t width) {
  imaging::Image image{height, width, channels, {}};
  const auto pixels = static_cast<std::size_t>(height * width);
  const auto count = static_cast<std::size_t>(channels);
  image.pixels.resize(pixels * count);
  for (std::size_t channel = 0; channel < count; ++channel) {
    for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
      image.pixels[pixel * count + channel] = planes[channel * pixels + pixel];
    }
  }
  return image;
}

}  // namespace mnist_train::data
