#include "data/image_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "imaging/codec.h"

namespace mnist_train::data {

namespace {

/// Brings an image to the geometry and writes it as planes [C,H,W] to `out`. Throws Error(kData) as
/// require_geometry does.
void fit(imaging::Image image, const ImageGeometry& geometry, const std::string& name,
         std::uint8_t* out) {
  require_geometry({image.channels, image.height, image.width}, geometry, name);
  // Gray is resized before it is copied to the channels, which gives each of them the same.
  if (image.channels > geometry.channels) {
    image = imaging::with_channels(std::move(image), geometry.channels);
  }
  const imaging::Image fitted = imaging::resize(image, geometry.height, geometry.width);
  const auto channels = static_cast<std::size_t>(geometry.channels);
  if (fitted.channels == 1) {
    for (std::size_t channel = 0; channel < channels; ++channel) {
      out = std::copy(fitted.pixels.begin(), fitted.pixels.end(), out);
    }
    return;
  }
  const std::size_t pixels = fitted.pixels.size() / channels;
  for (std::size_t channel = 0; channel < channels; ++channel) {
    for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
      *out++ = fitted.pixels[pixel * channels + channel];
    }
  }
}

}  // namespace

std::string ImageGeometry::text() const {
  return std::to_string(channels) + " x " + std::to_string(height) + " x " + std::to_string(width);
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

void ImageSource::decode(std::int64_t sample, const ImageGeometry& geometry, std::uint8_t* out,
                         std::vector<std::uint8_t>& buffer) const {
  const auto bytes = read(sample, buffer);
  if (!geometry_) {
    const std::string name = sample_name(sample);
    fit(imaging::decode(bytes, name), geometry, name, out);
  } else if (geometry_->same_shape(geometry)) {
    std::memcpy(out, bytes.data(), bytes.size());
  } else {
    fit(from_planes(bytes, *geometry_), geometry, sample_name(sample), out);
  }
}

void ImageSource::use_classes(const std::vector<std::string>& names, BadSamples& bad) {
  std::vector<std::int32_t> numbers;
  for (const std::string& name : class_names_) {
    const auto found = std::lower_bound(names.begin(), names.end(), name);
    if (found == names.end() || *found != name) {
      throw Error(ExitCode::kData,
                  name_ + "/" + name + ": a class that the training set does not have");
    }
    numbers.push_back(static_cast<std::int32_t>(found - names.begin()));
  }
  for (const std::string& name : names) {
    if (!std::binary_search(class_names_.begin(), class_names_.end(), name)) {
      bad.add(name_ + ": has no folder for the training set's class " + name);
    }
  }
  for (std::int32_t& label : labels_) label = numbers[static_cast<std::size_t>(label)];
  class_names_ = names;
  classes_ = static_cast<std::int64_t>(names.size());
}

void ImageSource::require_classes_fit() const {
  if (classes_ <= kMostClasses) return;
  const auto greatest = std::max_element(labels_.begin(), labels_.end()) - labels_.begin();
  throw Error(ExitCode::kData, sample_name(greatest) + ": class " + std::to_string(classes_ - 1) +
                                   "; at most " + std::to_string(kMostClasses) +
                                   " classes can be held");
}

}  // namespace mnist_train::data
