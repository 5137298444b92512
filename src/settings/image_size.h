#pragma once

#include <cstdint>

#include "strict_json/value_type.h"

namespace mnist_train::settings {

/// Height and width of an image, in pixels.
struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  bool operator==(const ImageSize&) const = default;
};

inline constexpr std::int64_t kMaxImageSide = 16384;

/// Returns the JSON type: one number for a square, or [height, width].
strict_json::Type<ImageSize> image_size();

}  // namespace mnist_train::settings
