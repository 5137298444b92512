#pragma once

#include <cstdint>
#include <string>

namespace mnist_train::report {

/// An image as a PNG file.
struct Picture {
  std::string png;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 1;  // 1 or 3
};

/// Encodes an image [channels, height, width] u8 of 1 or 3 channels as PNG; of an image with
/// another number of channels, the first channel alone.
Picture make_picture(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                     std::int64_t width);

/// Returns an image [channels, height, width] u8 small enough for a page with hundreds, as "data:"
/// URI: one of at most 64 pixels a side as it is, a larger one reduced, as JPEG.
std::string thumbnail_uri(const std::uint8_t* pixels, std::int64_t channels, std::int64_t height,
                          std::int64_t width);

/// Returns the picture as "data:image/png;base64,…".
std::string image_uri(const Picture& picture);

}  // namespace mnist_train::report
