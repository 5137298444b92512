#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mnist_train::data {

struct EncodedImages;

/// Labelled images of one geometry: bytes in host memory, which are read-only, shared and never
/// copied, or encoded images that are decoded as they are used.
struct ImageSet {
  std::int64_t count = 0;
  std::int64_t channels = 1;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t classes = 0;              // labels lie in [0, classes)
  std::span<const std::uint8_t> images;  // [count,C,H,W] u8; empty where they are encoded
  std::span<const std::uint8_t> labels;  // [count] u8
  std::shared_ptr<const void> owner;     // keeps both spans alive
  std::string source;                    // the images file, for messages
  std::shared_ptr<const EncodedImages> encoded{};

  std::int64_t bytes_per_image() const { return channels * height * width; }
  /// Returns one image as planes [C,H,W], decoded if need be. Throws Error(kData).
  std::vector<std::uint8_t> image(std::int64_t sample) const;
};

}  // namespace mnist_train::data
