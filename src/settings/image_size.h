#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strict_json/value_type.h"

namespace mnist_train::settings {

/// Height and width of an image, in pixels.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  bool operator==(const ImageSize&) const = default;
};

inline constexpr std::int64_t kMaxImageSide = 16384;

/// Returns the size for messages, height first: "28x28".
std::string text_of(const ImageSize& size);

/// Returns height and width for operators.
using Sides = std::vector<std::int64_t>;
inline Sides sides(const ImageSize& size) { return {size.height, size.width}; }

/// Returns the JSON type of two numbers from `min` to `max`: [height, width], or one for both.
strict_json::Type<ImageSize> height_and_width(std::int64_t min, std::int64_t max);

/// Returns the JSON type of an image's size.
strict_json::Type<ImageSize> image_size();

}  // namespace mnist_train::settings
