#include "loader/picture_operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

namespace mnist_train::loader {

namespace {

using data::PictureOperation;
using Table = std::array<std::uint8_t, 256>;

/// a * b + c like LibTorch with FMA: the product is exact in fp64, hence not rounded.
float multiply_add(float a, float b, float c) {
  return static_cast<float>(static_cast<double>(a) * b + c);
}

/// Clamps to 0–255 and truncates, like torchvision.
std::uint8_t to_byte(float value) {
  return static_cast<std::uint8_t>(std::min(std::max(value, 0.0F), 255.0F));
}

float gray_of(std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
  const float sum = multiply_add(green, 0.587F, static_cast<float>(red) * 0.2989F);
  return std::floor(multiply_add(blue, 0.114F, sum));
}

/// Blends a value with that of a degenerate image, like torchvision; `factor` 1 keeps the value.
struct Blend {
  explicit Blend(float factor)
      : own(factor), other(static_cast<float>(1.0 - static_cast<double>(factor))) {}

  std::uint8_t operator()(float value, float degenerate) const {
    return to_byte(multiply_add(degenerate, other, value * own));
  }

  float own;
  float other;
};

template <class Value>
Table table_of(const Value& value) {
  Table table;
  for (int level = 0; level < 256; ++level) {
    table[static_cast<std::size_t>(level)] = to_byte(value(static_cast<float>(level)));
  }
  return table;
}

void map_levels(const Table& table, const std::uint8_t* in, std::int64_t count, std::uint8_t* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = table[in[i]];
}

/// Returns the mean of the grayscale image.
float mean_of(const Planes& image) {
  const std::int64_t pixels = image.pixels();
  const std::uint8_t* level = image.values;
  const bool is_rgb = image.channels == 3;
  const std::int64_t count = is_rgb ? pixels : image.channels * pixels;
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i, ++level) {
    sum += is_rgb ? static_cast<std::int64_t>(gray_of(*level, level[pixels], level[2 * pixels]))
                  : *level;
  }
  return static_cast<float>(static_cast<double>(sum) / static_cast<double>(count));
}

void saturate(float factor, const Planes& image, std::uint8_t* out) {
  const std::int64_t pixels = image.pixels();
  const Blend blend(factor);
  for (std::int64_t i = 0; i < pixels; ++i) {
    const std::uint8_t* level = image.values + i;
    const float gray = gray_of(*level, level[pixels], level[2 * pixels]);
    for (std::int64_t c = 0; c < 3; ++c) out[i + c * pixels] = blend(level[c * pixels], gray);
  }
}

/// Returns a colour's hue in [0, 1), see torchvision's _rgb_to_hsv.
float hue_of(float red, float green, float blue, float highest, float range) {
  const float divisor = range == 0 ? 1 : range;
  const float r = (highest - red) / divisor;
  const float g = (highest - green) / divisor;
  const float b = (highest - blue) / divisor;
  float hue = g + 4 - r;
  if (highest == green) hue = r + 2 - b;
  if (highest == red) hue = b - g;
  hue = hue * static_cast<float>(1.0 / 6) + 1;
  return hue >= 1 ? hue - 1 : hue;
}

void shift_hue(float shift, const Planes& image, std::uint8_t* out) {
  constexpr float kLevels = 255.999F;
  const std::int64_t pixels = image.pixels();
  for (std::int64_t i = 0; i < pixels; ++i) {
    const auto part = [&](std::int64_t channel) {
      return static_cast<float>(image.values[i + channel * pixels]) * static_cast<float>(1.0 / 255);
    };
    const float red = part(0);
    const float green = part(1);
    const float blue = part(2);
    const float value = std::max({red, green, blue});
    const float range = value - std::min({red, green, blue});
    float hue = hue_of(red, green, blue, value, range) + shift;
    if (hue >= 1) hue -= 1;
    if (hue < 0) hue += 1;
    const float saturation = range / (range == 0 ? 1 : value);
    const float sixth = std::floor(hue * 6);
    const float product = saturation * (hue * 6 - sixth);
    const float rest = 1 - saturation;
    const auto level = [](float some) {
      return static_cast<std::uint8_t>(std::min(std::max(some, 0.0F), 1.0F) * kLevels);
    };
    const std::uint8_t v = level(value);
    const std::uint8_t p = level(rest * value);
    const std::uint8_t q = level((1 - product) * value);
    const std::uint8_t t = level((product + rest) * value);
    const std::array<std::array<std::uint8_t, 3>, 7> colours{
        {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}, {v, t, p}}};
    for (std::int64_t c = 0; c < 3; ++c) {
      out[i + c * pixels] = colours[static_cast<std::size_t>(sixth)][static_cast<std::size_t>(c)];
    }
  }
}

/// Blends with the image smoothed by a 3x3 kernel of ones with 5 in the middle; keeps the border.
void sharpen(float factor, const Planes& image, std::uint8_t* out) {
  std::memcpy(out, image.values, static_cast<std::size_t>(image.channels * image.pixels()));
  const std::int64_t width = image.width;
  const float rest = Blend(factor).other;
  for (std::int64_t row = 0; row < image.channels * image.height; ++row) {
    const std::int64_t y = row % image.height;
    if (y == 0 || y == image.height - 1) continue;
    const std::uint8_t* at = image.values + row * width;
    for (std::int64_t x = 1; x < width - 1; ++x) {
      int sum = 4 * at[x];
      for (const std::uint8_t* line : {at - width, at, at + width}) {
        sum += line[x - 1] + line[x] + line[x + 1];
      }
      const int rounded = (2 * sum + 13) / 26;  // the quotient is never k + 1/2
      const auto smooth = static_cast<float>(rounded);
      const auto own = static_cast<float>(at[x]);
      out[row * width + x] = to_byte(multiply_add(smooth - own, rest, own));
    }
  }
}

/// Returns the table that stretches the levels of a plane to 0–255.
Table autocontrast_table(const std::uint8_t* plane, std::int64_t count) {
  std::uint8_t least = 255;
  std::uint8_t greatest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    least = std::min(least, plane[i]);
    greatest = std::max(greatest, plane[i]);
  }
  const auto first = static_cast<float>(least);
  const float scale = static_cast<float>(greatest - least) * static_cast<float>(1.0 / 255);
  if (scale == 0) return table_of([](float level) { return level; });
  return table_of([=](float level) { return (level - first) / scale; });
}

/// Returns the table that equalises the histogram of a plane, like Pillow.
Table equalize_table(const std::uint8_t* plane, std::int64_t count) {
  std::array<std::int64_t, 256> histogram{};
  for (std::int64_t i = 0; i < count; ++i) ++histogram[plane[i]];
  const auto last =
      std::find_if(histogram.rbegin(), histogram.rend(), [](auto n) { return n > 0; });
  const std::int64_t step = (count - *last) / 255;
  if (step == 0) return table_of([](float level) { return level; });
  Table table;
  std::int64_t below = 0;
  for (std::size_t level = 0; level < table.size(); ++level) {
    table[level] =
        static_cast<std::uint8_t>(std::min<std::int64_t>((below + step / 2) / step, 255));
    below += histogram[level];
  }
  return table;
}

}  // namespace

AffineMap affine_map(const data::PictureChange& change, settings::ImageSize size) {
  using enum PictureOperation;
  const auto height = static_cast<double>(size.height);
  const auto width = static_cast<double>(size.width);
  const double by = change.magnitude;
  std::array<double, 6> map{1, 0, 0, 0, 1, 0};
  // A shear keeps the corner fixed.
  if (change.operation == kShearX) map = {1, by, by * height / 2, 0, 1, 0};
  if (change.operation == kShearY) map = {1, 0, 0, by, 1, by * width / 2};
  if (change.operation == kTranslateX) map = {1, 0, -by, 0, 1, 0};
  if (change.operation == kTranslateY) map = {1, 0, 0, 0, 1, -by};
  if (change.operation == kRotate) {
    const double angle = by * std::numbers::pi / 180;
    map = {std::cos(angle), -std::sin(angle), 0, std::sin(angle), std::cos(angle), 0};
  }
  AffineMap halves;
  for (std::size_t i = 0; i < map.size(); ++i) {
    halves[i] = static_cast<float>(map[i]) / static_cast<float>(0.5 * (i < 3 ? width : height));
  }
  return halves;
}

void change_picture(PictureOperation operation, float magnitude, const Planes& image,
                    std::uint8_t* out) {
  const std::int64_t values = image.channels * image.pixels();
  const auto by_level = [&](const auto& value) {
    map_levels(table_of(value), image.values, values, out);
  };
  const auto plane_by_plane = [&](const auto& make_table) {
    for (std::int64_t begin = 0; begin < values; begin += image.pixels()) {
      const std::uint8_t* plane = image.values + begin;
      map_levels(make_table(plane, image.pixels()), plane, image.pixels(), out + begin);
    }
  };
  const bool is_rgb = image.channels == 3;
  using enum PictureOperation;
  if (operation == kBrightness) return by_level([=](float level) { return level * magnitude; });
  if (operation == kContrast) {
    const Blend blend(magnitude);
    const float mean = mean_of(image);
    return by_level([&](float level) { return static_cast<float>(blend(level, mean)); });
  }
  if (operation == kSaturation && is_rgb) return saturate(magnitude, image, out);
  if (operation == kHue && is_rgb) return shift_hue(magnitude, image, out);
  if (operation == kSharpness) return sharpen(magnitude, image, out);
  if (operation == kPosterize) {
    return by_level([=](float level) { return std::floor(level / magnitude) * magnitude; });
  }
  if (operation == kSolarize) {
    return by_level([=](float level) { return level >= magnitude ? 255 - level : level; });
  }
  if (operation == kAutocontrast) return plane_by_plane(autocontrast_table);
  if (operation == kEqualize) return plane_by_plane(equalize_table);
  if (out != image.values) std::memcpy(out, image.values, static_cast<std::size_t>(values));
}

void map_picture(const AffineMap& map, const Planes& image, std::uint8_t* out) {
  const auto height = static_cast<float>(image.height);
  const auto width = static_cast<float>(image.width);
  for (std::int64_t row = 0; row < image.height; ++row) {
    const float y = static_cast<float>(row) + (1 - height) / 2;
    for (std::int64_t column = 0; column < image.width; ++column, ++out) {
      const float x = static_cast<float>(column) + (1 - width) / 2;
      // Same order and rounding as in LibTorch's matrix product and grid_sample.
      const float from_x = multiply_add(y, map[1], x * map[0]) + map[2];
      const float from_y = multiply_add(y, map[4], x * map[3]) + map[5];
      const float left = std::nearbyint(multiply_add(from_x + 1, width / 2, -0.5F));
      const float top = std::nearbyint(multiply_add(from_y + 1, height / 2, -0.5F));
      const bool inside = left >= 0 && left < width && top >= 0 && top < height;
      const std::int64_t from =
          inside ? static_cast<std::int64_t>(top) * image.width + static_cast<std::int64_t>(left)
                 : 0;
      for (std::int64_t c = 0; c < image.channels; ++c) {
        out[c * image.pixels()] = inside ? image.values[c * image.pixels() + from] : 0;
      }
    }
  }
}

}  // namespace mnist_train::loader
