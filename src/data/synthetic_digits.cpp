#include <array>
#include <cmath>
#include <random>
#include <string_view>

#include "data/sources.h"

namespace mnist_train::data {

namespace {

constexpr int kSide = 28;
constexpr std::int64_t kDigits = 10;
constexpr int kColumns = 5;  // of a glyph
constexpr int kRows = 7;
constexpr int kPitch = kColumns + 1;  // from one glyph to the next

constexpr std::array<std::string_view, kRows> kGlyphs{
    " ###    #    ###   ###     #  #####   ##  #####  ###   ### ",
    "#   #  ##   #   # #   #   ##  #      #        # #   # #   #",
    "#   #   #       #     #  # #  ####  #        #  #   # #   #",
    "#   #   #      #    ##  #  #      # ####    #    ###   ####",
    "#   #   #     #       # #####     # #   #   #   #   #     #",
    "#   #   #    #    #   #    #  #   # #   #  #    #   #    # ",
    " ###   ###  #####  ###     #   ###   ###   #     ###   ##  "};

/// Returns the ink, from 0 to 1, at a point of a glyph, interpolated between the centres of its
/// cells, which have integer coordinates.
double ink_at(std::int64_t digit, double column, double row) {
  const int left = static_cast<int>(std::floor(column));
  const int top = static_cast<int>(std::floor(row));
  double ink = 0;
  for (int y = std::max(top, 0); y <= std::min(top + 1, kRows - 1); ++y) {
    for (int x = std::max(left, 0); x <= std::min(left + 1, kColumns - 1); ++x) {
      const auto at = static_cast<std::size_t>(digit * kPitch + x);
      if (kGlyphs[static_cast<std::size_t>(y)][at] != '#') continue;
      ink += (1 - std::abs(column - x)) * (1 - std::abs(row - y));
    }
  }
  return ink;
}

void draw(std::int64_t sample, std::uint8_t* image) {
  std::mt19937 random(static_cast<std::uint32_t>(sample));
  // The standard library's distributions differ between implementations.
  const auto between = [&random](double low, double high) {
    return low + (high - low) * static_cast<double>(random()) / 4294967296.0;
  };
  const double angle = between(-0.25, 0.25);
  const double shear = between(-0.25, 0.25);
  const double columns_per_pixel = kColumns / between(12, 17);
  const double rows_per_pixel = kRows / between(18, 22);
  const double centre_x = kSide / 2.0 + between(-2, 2);
  const double centre_y = kSide / 2.0 + between(-2, 2);
  const double weight = between(1.2, 2.4);  // larger values widen strokes
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const double right = x + 0.5 - centre_x;
      const double below = y + 0.5 - centre_y;
      const double down = below * std::cos(angle) - right * std::sin(angle);
      const double across = right * std::cos(angle) + below * std::sin(angle) + shear * down;
      const double ink = ink_at(sample % kDigits, across * columns_per_pixel + (kColumns - 1) / 2.0,
                                down * rows_per_pixel + (kRows - 1) / 2.0);
      image[y * kSide + x] = static_cast<std::uint8_t>(255 * std::min(1.0, weight * ink));
    }
  }
}

class SyntheticDigits : public ImageSource {
 public:
  SyntheticDigits(std::int64_t first, std::int64_t count) : first_(first) {
    name_ = "synthetic digits";
    geometry_ = {1, kSide, kSide};
    classes_ = kDigits;
    for (std::int64_t sample = 0; sample < count; ++sample) {
      labels_.push_back(static_cast<std::int32_t>((first + sample) % kDigits));
    }
  }

  std::string sample_name(std::int64_t sample) const override {
    return "synthetic digit " + std::to_string(first_ + sample);
  }

  Bytes read(std::int64_t sample, Buffer& buffer) const override {
    buffer.assign(std::size_t{kSide} * kSide, 0);
    draw(first_ + sample, buffer.data());
    return buffer;
  }

 private:
  std::int64_t first_;
};

}  // namespace

std::shared_ptr<ImageSource> draw_digits(std::int64_t first, std::int64_t count) {
  return std::make_shared<SyntheticDigits>(first, count);
}

}  // namespace mnist_train::data
