#include "imaging/image.h"

#include <algorithm>
#include <cmath>

namespace mnist_train::imaging {

namespace {

/// For each output position along one axis, its input positions and their weights.
struct AxisWindows {
  std::vector<std::int64_t> begin{};   // [positions]
  std::vector<std::int64_t> first{0};  // [positions + 1]: the first of its weights
  std::vector<float> weights{};
};

AxisWindows windows(std::int64_t from, std::int64_t to) {
  AxisWindows result;
  auto& [begin, first, weights] = result;
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double radius = std::max(scale, 1.0);
  for (std::int64_t out = 0; out < to; ++out) {
    const double centre = (static_cast<double>(out) + 0.5) * scale;
    begin.push_back(std::max<std::int64_t>(0, std::llround(std::floor(centre - radius + 0.5))));
    const auto end = std::min<std::int64_t>(from, std::llround(std::floor(centre + radius + 0.5)));
    double sum = 0;
    for (std::int64_t in = begin.back(); in < end; ++in) {
      const double distance = std::abs((static_cast<double>(in) + 0.5 - centre) / radius);
      const double weight = std::max(0.0, 1.0 - distance);
      weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    for (auto at = static_cast<std::size_t>(first.back()); at < weights.size(); ++at) {
      weights[at] = static_cast<float>(weights[at] / sum);
    }
    first.push_back(static_cast<std::int64_t>(weights.size()));
  }
  return result;
}

/// Resizes one row of `channels` interleaved values.
void resample_row(const AxisWindows& columns, const std::uint8_t* in, std::int64_t channels,
                  float* out) {
  for (std::size_t column = 0; column < columns.begin.size(); ++column) {
    const std::uint8_t* window = in + columns.begin[column] * channels;
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      const std::uint8_t* value = window + channel;
      float sum = 0;
      for (auto at = columns.first[column]; at < columns.first[column + 1]; ++at) {
        sum += columns.weights[static_cast<std::size_t>(at)] * static_cast<float>(*value);
        value += channels;
      }
      *out++ = sum;
    }
  }
}

/// Computes one row, `out`, from the rows of `in`, which have the same length.
void mix_rows(const AxisWindows& rows, std::size_t row, const std::vector<float>& in,
              std::vector<float>& out) {
  std::fill(out.begin(), out.end(), 0.0F);
  const float* values = in.data() + static_cast<std::size_t>(rows.begin[row]) * out.size();
  for (auto at = rows.first[row]; at < rows.first[row + 1]; ++at) {
    const float weight = rows.weights[static_cast<std::size_t>(at)];
    for (float& sum : out) sum += weight * *values++;
  }
}

/// Rounds half up, like std::lround for non-negative values, but vectorises.
std::uint8_t nearest_byte(float value) {
  const int whole = static_cast<int>(value);
  const int rounded = whole + (value - static_cast<float>(whole) >= 0.5F ? 1 : 0);
  return static_cast<std::uint8_t>(std::min(rounded, 255));
}

}  // namespace

Image resize(const Image& image, std::int64_t height, std::int64_t width) {
  if (height == image.height && width == image.width) return image;
  const AxisWindows columns = windows(image.width, width);
  const AxisWindows rows = windows(image.height, height);
  std::vector<float> values(static_cast<std::size_t>(width * image.channels));
  std::vector<float> narrowed(static_cast<std::size_t>(image.height) * values.size());
  for (std::int64_t row = 0; row < image.height; ++row) {
    resample_row(columns, image.pixels.data() + row * image.width * image.channels, image.channels,
                 narrowed.data() + static_cast<std::size_t>(row) * values.size());
  }
  Image result{height, width, image.channels, {}};
  result.pixels.resize(result.bytes());
  std::uint8_t* out = result.pixels.data();
  for (std::size_t row = 0; row < static_cast<std::size_t>(height); ++row) {
    mix_rows(rows, row, narrowed, values);
    out = std::transform(values.begin(), values.end(), out, nearest_byte);
  }
  return result;
}

Image with_channels(Image image, std::int64_t channels) {
  if (image.channels == channels) return image;
  Image result{image.height, image.width, channels, {}};
  result.pixels.reserve(result.bytes());
  if (channels == 3) {
    for (const std::uint8_t value : image.pixels)
      result.pixels.insert(result.pixels.end(), 3, value);
    return result;
  }
  for (std::size_t at = 0; at + 2 < image.pixels.size(); at += 3) {
    const unsigned luma = 19595U * image.pixels[at] + 38470U * image.pixels[at + 1] +
                          7471U * image.pixels[at + 2] + 0x8000U;
    result.pixels.push_back(static_cast<std::uint8_t>(luma >> 16U));
  }
  return result;
}

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
