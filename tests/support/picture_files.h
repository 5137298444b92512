#pragma once

#include <cstdint>
#include <string>

#include "imaging/codec.h"
#include "support/idx_bytes.h"

namespace mnist_train::testing {

/// Returns a picture of noise.
inline imaging::Image picture(std::int64_t height, std::int64_t width, std::int64_t channels = 1,
                              std::uint64_t salt = 1) {
  imaging::Image image{height, width, channels, {}};
  const std::string bytes = noise(image.bytes(), salt);
  image.pixels.assign(bytes.begin(), bytes.end());
  return image;
}

/// Returns the same picture, encoded as PNG.
inline std::string png(std::int64_t height, std::int64_t width, std::int64_t channels = 1,
                       std::uint64_t salt = 1) {
  return imaging::encode_png(picture(height, width, channels, salt));
}

}  // namespace mnist_train::testing
