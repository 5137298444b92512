#include <algorithm>
#include <cmath>
#include <cstring>

#include "imaging/codec.h"

namespace mnist_train::imaging {

namespace {

/// The input positions and weights for each output position along one axis.
struct AxisWindows {
  std::vector<std::int64_t> begin{};   // [positions]
  std::vector<std::int64_t> first{0};  // [positions + 1]: index of a position's first weight
  std::vector<float> weights{};
};

/// A range of output positions on a resized axis.
struct Positions {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t size() const { return end - begin; }
};

/// Returns the positions visible on a canvas of `canvas` pixels if the axis begins at `start`.
Positions visible(std::int64_t size, std::int64_t start, std::int64_t canvas) {
  return {std::max<std::int64_t>(0, -start), std::min(size, canvas - start)};
}

AxisWindows windows(std::int64_t from, std::int64_t to, Positions wanted) {
  AxisWindows result;
  auto& [begin, first, weights] = result;
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double radius = std::max(scale, 1.0);
  for (std::int64_t out = wanted.begin; out < wanted.end; ++out) {
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

using Floats = float __attribute__((vector_size(16)));

/// Resizes two rows of `channels` (1 or 3) interleaved values; may read one value past the end. All
/// channels of a pixel are summed at once, each in window order.
template <std::size_t channels>
void resample_rows(const AxisWindows& columns, std::array<const float*, 2> in,
                   std::array<float*, 2> out) {
  for (std::size_t column = 0; column < columns.begin.size(); ++column) {
    std::int64_t at = columns.begin[column] * static_cast<std::int64_t>(channels);
    const float* weight = columns.weights.data() + columns.first[column];
    const float* end = columns.weights.data() + columns.first[column + 1];
    Floats first{};
    Floats second{};
    for (; weight != end; ++weight, at += static_cast<std::int64_t>(channels)) {
      Floats pixel{};
      Floats below{};
      constexpr std::size_t kBytes = channels == 1 ? sizeof(float) : sizeof(Floats);
      std::memcpy(&pixel, in[0] + at, kBytes);
      std::memcpy(&below, in[1] + at, kBytes);
      first += *weight * pixel;
      second += *weight * below;
    }
    for (std::size_t channel = 0; channel < channels; ++channel) {
      *out[0]++ = first[channel];
      *out[1]++ = second[channel];
    }
  }
}

/// Computes one row, `out`, from the rows of `in`, which have the same length.
void mix_rows(const AxisWindows& rows, std::size_t row, const std::vector<float>& in,
              std::vector<float>& out) {
  std::fill(out.begin(), out.end(), 0.0F);
  const auto first = static_cast<std::size_t>(rows.begin[row] - rows.begin.front());
  const float* values = in.data() + first * out.size();
  for (auto at = rows.first[row]; at < rows.first[row + 1]; ++at) {
    const float weight = rows.weights[static_cast<std::size_t>(at)];
    for (float& sum : out) sum += weight * *values++;
  }
}

/// Rounds half up, like std::lround for non-negative values, but vectorises.
std::uint8_t nearest_byte(float value) {
  const int truncated = static_cast<int>(value);
  const int rounded = truncated + (value - static_cast<float>(truncated) >= 0.5F ? 1 : 0);
  return static_cast<std::uint8_t>(std::min(rounded, 255));
}

/// Resizes to `height` x `width`, computing only the wanted rows and columns.
Image resize_part(const Image& image, std::int64_t height, std::int64_t width, Positions rows,
                  Positions columns) {
  const AxisWindows across = windows(image.width, width, columns);
  const AxisWindows down = windows(image.height, height, rows);
  const std::int64_t first = down.begin.front();
  const std::int64_t end = down.begin.back() + down.first.back() - down.first.end()[-2];
  std::vector<float> values(static_cast<std::size_t>(columns.size() * image.channels));
  std::vector<float> narrowed(static_cast<std::size_t>(end - first) * values.size());
  const auto row_size = static_cast<std::size_t>(image.width * image.channels);
  std::vector<float> in(2 * row_size + 1);
  for (std::int64_t row = first; row < end; row += 2) {
    const std::int64_t pair = std::min<std::int64_t>(2, end - row);
    const std::uint8_t* bytes = image.pixels.data() + static_cast<std::size_t>(row) * row_size;
    std::copy(bytes, bytes + static_cast<std::size_t>(pair) * row_size, in.begin());
    float* narrow = narrowed.data() + static_cast<std::size_t>(row - first) * values.size();
    // If the number of rows is odd, the last one is computed twice.
    const std::array<const float*, 2> from{in.data(), in.data() + (pair == 2 ? row_size : 0)};
    const std::array<float*, 2> to{narrow, narrow + (pair == 2 ? values.size() : 0)};
    image.channels == 1 ? resample_rows<1>(across, from, to) : resample_rows<3>(across, from, to);
  }
  Image result{rows.size(), columns.size(), image.channels, {}};
  result.pixels.resize(result.bytes());
  std::uint8_t* out = result.pixels.data();
  for (std::size_t row = 0; row < down.begin.size(); ++row) {
    mix_rows(down, row, narrowed, values);
    out = std::transform(values.begin(), values.end(), out, nearest_byte);
  }
  return result;
}

}  // namespace

Image resize(const Image& image, std::int64_t height, std::int64_t width) {
  if (height == image.height && width == image.width) return image;
  return resize_part(image, height, width, {0, height}, {0, width});
}

// llrint rounds half to even, like Python's round.

Framing crop_framing(const Image& image, std::int64_t height, std::int64_t width) {
  Framing result{height, width};
  if (image.width * height >= image.height * width) {
    result.width = height * image.width / image.height;
  } else {
    result.height = width * image.height / image.width;
  }
  result.top = -std::llrint(static_cast<double>(result.height - height) / 2);
  result.left = -std::llrint(static_cast<double>(result.width - width) / 2);
  return result;
}

Framing pad_framing(const Image& image, std::int64_t height, std::int64_t width) {
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double ratio = real(image.width) / real(image.height);
  const double wanted = real(width) / real(height);
  Framing result{height, width};
  if (ratio > wanted) {
    result.height = std::llrint(real(image.height) / real(image.width) * real(width));
  } else if (ratio < wanted) {
    result.width = std::llrint(real(image.width) / real(image.height) * real(height));
  }
  // If a side rounds to 0, it becomes 1, whereas Pillow fails.
  result.height = std::max<std::int64_t>(result.height, 1);
  result.width = std::max<std::int64_t>(result.width, 1);
  result.top = std::llrint(real(height - result.height) * 0.5);
  result.left = std::llrint(real(width - result.width) * 0.5);
  return result;
}

void draw_planes(Image image, const Framing& framing, std::int64_t channels, std::int64_t height,
                 std::int64_t width, const Colour& background, std::uint8_t* out) {
  // Gray images are resized before their channel is repeated, with the same result.
  if (image.channels > channels) image = with_channels(std::move(image), channels);
  const Positions rows = visible(framing.height, framing.top, height);
  const Positions columns = visible(framing.width, framing.left, width);
  const bool as_is = framing.height == image.height && framing.width == image.width &&
                     rows.size() == image.height && columns.size() == image.width;
  const Image part =
      as_is ? std::move(image) : resize_part(image, framing.height, framing.width, rows, columns);
  const Image bars = with_channels({1, 1, 3, {background.begin(), background.end()}}, channels);
  const std::int64_t top = std::max<std::int64_t>(0, framing.top);
  const std::int64_t left = std::max<std::int64_t>(0, framing.left);
  for (std::int64_t channel = 0; channel < channels; ++channel, out += height * width) {
    if (part.height < height || part.width < width) {
      std::fill_n(out, height * width, bars.pixels[static_cast<std::size_t>(channel)]);
    }
    const std::uint8_t* in = part.pixels.data() + (part.channels == 1 ? 0 : channel);
    for (std::int64_t y = 0; y < part.height; ++y) {
      std::uint8_t* row = out + (top + y) * width + left;
      for (std::int64_t x = 0; x < part.width; ++x, in += part.channels) row[x] = *in;
    }
  }
}

Image from_planes(const std::uint8_t* planes, std::int64_t channels, std::int64_t height,
                  std::int64_t width) {
  Image image{height, width, channels, {}};
  image.pixels.reserve(image.bytes());
  for (const std::uint8_t* end = planes + height * width; planes != end; ++planes) {
    for (std::int64_t i = 0; i < channels; ++i) image.pixels.push_back(planes[i * height * width]);
  }
  return image;
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

double border_brightness(Bytes planes, std::int64_t height, std::int64_t width) {
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
