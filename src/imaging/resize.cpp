#include <algorithm>
#include <cmath>

#include "imaging/image.h"

namespace mnist_train::imaging {

namespace {

/// The input positions [begin, begin + weights.size()) that make one output position.
struct Window {
  std::int64_t begin = 0;
  std::vector<float> weights;
};

std::vector<Window> windows(std::int64_t from, std::int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double radius = std::max(scale, 1.0);
  std::vector<Window> result(static_cast<std::size_t>(to));
  for (std::int64_t out = 0; out < to; ++out) {
    const double centre = (static_cast<double>(out) + 0.5) * scale;
    const auto begin = std::max<std::int64_t>(0, std::llround(std::floor(centre - radius + 0.5)));
    const auto end = std::min<std::int64_t>(from, std::llround(std::floor(centre + radius + 0.5)));
    Window& window = result[static_cast<std::size_t>(out)];
    window.begin = begin;
    double sum = 0;
    for (std::int64_t in = begin; in < end; ++in) {
      const double distance = std::abs((static_cast<double>(in) + 0.5 - centre) / radius);
      const double weight = std::max(0.0, 1.0 - distance);
      window.weights.push_back(static_cast<float>(weight));
      sum += weight;
    }
    for (float& weight : window.weights) weight = static_cast<float>(weight / sum);
  }
  return result;
}

/// Along one axis: `in` is [outer, from, inner], the result [outer, windows, inner].
std::vector<float> resample(const std::vector<float>& in, std::int64_t outer, std::int64_t from,
                            std::int64_t inner, const std::vector<Window>& axis) {
  const auto to = static_cast<std::int64_t>(axis.size());
  std::vector<float> out(static_cast<std::size_t>(outer * to * inner), 0.0F);
  for (std::int64_t row = 0; row < outer; ++row) {
    for (std::int64_t position = 0; position < to; ++position) {
      const Window& window = axis[static_cast<std::size_t>(position)];
      float* target = out.data() + (row * to + position) * inner;
      const float* source = in.data() + (row * from + window.begin) * inner;
      for (const float weight : window.weights) {
        for (std::int64_t value = 0; value < inner; ++value)
          target[value] += weight * source[value];
        source += inner;
      }
    }
  }
  return out;
}

}  // namespace

Image resize(const Image& image, std::int64_t height, std::int64_t width) {
  if (height == image.height && width == image.width) return image;
  std::vector<float> values(image.pixels.begin(), image.pixels.end());
  values = resample(values, image.height, image.width, image.channels, windows(image.width, width));
  values = resample(values, 1, image.height, width * image.channels, windows(image.height, height));
  Image result{height, width, image.channels, {}};
  result.pixels.reserve(values.size());
  for (const float value : values) {
    result.pixels.push_back(
        static_cast<std::uint8_t>(std::clamp<long>(std::lround(value), 0, 255)));
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

}  // namespace mnist_train::imaging
