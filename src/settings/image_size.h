#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mnist_train::settings {

/// Height and width of an image, in pixels.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  bool operator==(const ImageSize&) const = default;
};

inline constexpr std::int64_t kMaxImageSide = 16384;

/// Returns the size for messages, height first: "28x28".
inline std::string text_of(const ImageSize& size) {
  return std::to_string(size.height) + "x" + std::to_string(size.width);
}

/// Returns height and width for operators.
using Sides = std::vector<std::int64_t>;
inline Sides sides(const ImageSize& size) { return {size.height, size.width}; }

}  // namespace mnist_train::settings
