#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "cpu_kernels/convolution.h"
#include "cpu_kernels/kernels.h"

/// Converts between blocked and plain images [image][channel][y][x].
namespace mnist_train::cpu_kernels {

/// The relative error that rounding results and fp32 sums may cause.
template <class Element>
double tolerance() {
  return kDepth<Element> == 2 ? 3e-3 : 1e-6;
}

/// Draws random numbers that the element type represents exactly, or small integers.
template <class Element>
class Draws {
 public:
  explicit Draws(std::uint32_t seed, bool integers = false) : engine_(seed), integers_(integers) {}

  std::vector<Element> numbers(std::int64_t count) {
    std::vector<Element> all(static_cast<std::size_t>(count));
    for (Element& element : all) round_to(number(), element);
    return all;
  }
  std::int64_t below(std::int64_t end) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(end));
  }

 private:
  float number() {
    if (integers_) return static_cast<float>(static_cast<int>(engine_() % 5) - 2);
    return std::uniform_real_distribution<float>(-1, 1)(engine_);
  }

  std::mt19937 engine_;
  bool integers_;
};

/// Returns the index of an element in blocked images.
template <class Element>
std::size_t blocked_index(const ValueShape& shape, std::int64_t image, std::int64_t channel,
                          std::int64_t y, std::int64_t x) {
  const std::int64_t depth = kDepth<Element>;
  const std::int64_t word =
      (y * shape.width + x) * words<Element>(shape.channels) + channel / depth;
  return static_cast<std::size_t>(image / kImages * shape.block_size<Element>() +
                                  (word * kImages + image % kImages) * depth + channel % depth);
}

/// Calls `action(plain index, blocked index)` for each element of `images` images.
template <class Element, class Action>
void for_each_element(const ValueShape& shape, std::int64_t images, const Action& action) {
  std::size_t plain = 0;
  for (std::int64_t image = 0; image < images; ++image) {
    for (std::int64_t channel = 0; channel < shape.channels; ++channel) {
      for (std::int64_t y = 0; y < shape.height; ++y) {
        for (std::int64_t x = 0; x < shape.width; ++x, ++plain) {
          action(plain, blocked_index<Element>(shape, image, channel, y, x));
        }
      }
    }
  }
}

/// Returns zeroed blocks for `images` images, including the slack after them.
template <class Element>
std::vector<Element> empty_blocks(const ValueShape& shape, std::int64_t images) {
  return std::vector<Element>(
      static_cast<std::size_t>(ceil_divide(images, kImages) * shape.block_size<Element>()) +
      kSlackBytes / sizeof(Element));
}

template <class Element>
std::vector<Element> to_blocks(const ValueShape& shape, std::int64_t images,
                               const std::vector<Element>& plain) {
  std::vector<Element> blocks = empty_blocks<Element>(shape, images);
  for_each_element<Element>(shape, images, [&](auto from, auto to) { blocks[to] = plain[from]; });
  return blocks;
}

template <class Element>
std::vector<double> from_blocks(const ValueShape& shape, std::int64_t images,
                                const std::vector<Element>& blocks) {
  std::vector<double> plain(static_cast<std::size_t>(images * shape.channels * shape.pixels()));
  for_each_element<Element>(shape, images,
                            [&](auto to, auto from) { plain[to] = to_float(blocks[from]); });
  return plain;
}

template <class Element>
std::vector<double> to_doubles(const std::vector<Element>& elements) {
  std::vector<double> values;
  for (const Element element : elements) values.push_back(to_float(element));
  return values;
}

/// Returns the norm of the errors relative to the norm of the expected values.
inline double relative_error(const std::vector<double>& found,
                             const std::vector<double>& expected) {
  if (found.size() != expected.size()) return 1e30;
  double errors = 0;
  double squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    errors += (found[i] - expected[i]) * (found[i] - expected[i]);
    squares += expected[i] * expected[i];
  }
  if (std::isnan(errors)) return 1e30;
  return errors == 0 ? 0 : std::sqrt(errors / squares);
}

/// Returns the number of input channels that an output channel sums over.
inline std::int64_t summed_channels(const ConvolutionShape& s) {
  return s.depthwise ? 1 : s.in.channels;
}

/// Calls `action(output index, input index, weight index)` for each product of a convolution, with
/// indices into plain tensors and channels_last weights.
template <class Action>
void for_each_product(const ConvolutionShape& s, std::int64_t images, const Action& action) {
  for (std::int64_t image = 0; image < images; ++image) {
    for (std::int64_t o = 0; o < s.out.channels; ++o) {
      for (std::int64_t c = 0; c < summed_channels(s); ++c) {
        const std::int64_t channel = s.depthwise ? o : c;
        for (std::int64_t y = 0; y < s.out.height; ++y) {
          for (std::int64_t ky = 0; ky < s.kernel.height; ++ky) {
            const std::int64_t in_y = y * s.stride.height + ky - s.padding.height;
            if (in_y < 0 || in_y >= s.in.height) continue;
            for (std::int64_t x = 0; x < s.out.width; ++x) {
              for (std::int64_t kx = 0; kx < s.kernel.width; ++kx) {
                const std::int64_t in_x = x * s.stride.width + kx - s.padding.width;
                if (in_x < 0 || in_x >= s.in.width) continue;
                action(((image * s.out.channels + o) * s.out.height + y) * s.out.width + x,
                       ((image * s.in.channels + channel) * s.in.height + in_y) * s.in.width + in_x,
                       ((o * s.kernel.height + ky) * s.kernel.width + kx) * summed_channels(s) + c);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace mnist_train::cpu_kernels
