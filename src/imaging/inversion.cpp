#include "imaging/inversion.h"

namespace mnist_train::imaging {

double border_brightness(std::span<const std::uint8_t> planes, std::int64_t height,
                         std::int64_t width) {
  std::uint64_t sum = 0;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < planes.size(); ++i) {
    const auto pixel = static_cast<std::int64_t>(i) % (height * width);
    const std::int64_t y = pixel / width;
    const std::int64_t x = pixel % width;
    if (y > 0 && y < height - 1 && x > 0 && x < width - 1) continue;
    sum += planes[i];
    ++count;
  }
  return static_cast<double>(sum) / (255.0 * static_cast<double>(count));
}

bool looks_inverted(double border, double trained_mean) {
  constexpr double kDark = 0.4;
  constexpr double kLight = 0.6;
  if (trained_mean < kDark) return border > 0.5;
  return trained_mean > kLight && border < 0.5;
}

}  // namespace mnist_train::imaging
