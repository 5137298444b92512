// Compiled with AVX-512 switched on: nothing of the standard library may be used here, or its
// inline functions could end up in the program for all processors.
#include "base/cpu_features.h"
#include "models/hwcn_convolution.h"

#ifdef __AVX512BF16__

#include "models/hwcn_blocks_avx512.h"
#include "models/tile_cover_avx512.h"

namespace mnist_train::models {

namespace {

using namespace avx512;

/// Returns how many elements the packed weights of one tap have.
template <class Element>
std::int64_t packed_tap(std::int64_t inner, std::int64_t outputs) {
  return depths_of<Element>(inner) * kDepth<Element> * outputs;
}

template <class Element>
std::int64_t forward_weights(const ConvolutionShape& s) {
  return s.kernel * packed_tap<Element>(s.run(), s.out_channels);
}
template <class Element>
void pack_forward(const ConvolutionShape& s, const Element* weights, Element* packed) {
  const auto weight = [&](std::int64_t ky, std::int64_t i, std::int64_t channel) {
    return weights[(channel * s.kernel + ky) * s.run() + i];
  };
  pack(s.kernel, s.run(), s.out_channels, weight, packed);
}

template <class Element>
std::int64_t data_weights(const ConvolutionShape& s) {
  return s.kernel * s.kernel * packed_tap<Element>(s.out_channels, s.in_channels);
}
template <class Element>
void pack_data(const ConvolutionShape& s, const Element* weights, Element* packed) {
  const std::int64_t taps = s.kernel * s.kernel;
  const auto weight = [&](std::int64_t tap, std::int64_t channel, std::int64_t into) {
    return weights[(channel * taps + tap) * s.in_channels + into];
  };
  pack(taps, s.out_channels, s.in_channels, weight, packed);
}

/// Taps of a kernel in one direction: how many, and how far apart they are in packed weights and
/// in a block.
struct Taps {
  std::int64_t count, of_weights, of_block;
};

/// The outputs of one pixel, for all images of a block: sums over the taps, and over `inner`
/// elements of the block behind each of them.
template <class Element>
struct Pixel {
  Taps down, right;
  std::int64_t inner, outputs;
  const Element* weights;  // of the first tap
  const Element* from;     // under the first tap
  const Element* bias;     // null: none
  Element* to;

  /// The rows of a tile are outputs, and its two vectors are the halves of the images.
  template <class Sums>
  void tile(typename Sums::Shapes shapes, std::int64_t row, std::int64_t /*vector*/) const {
    Sums tile(shapes);
    tile.for_each([&](int m, int, __m512& sum) {
      sum = _mm512_set1_ps(bias == nullptr ? 0 : to_float(bias[row + m]));
    });
    for (std::int64_t y = 0; y < down.count; ++y) {
      for (std::int64_t x = 0; x < right.count; ++x) {
        add(weights + y * down.of_weights + x * right.of_weights + row * kDepth<Element>,
            from + y * down.of_block + x * right.of_block, tile);
      }
    }
    __m512 first;
    tile.for_each([&](int m, int v, const __m512& sum) {
      v == 0 ? void(first = sum) : store_halves(to + (row + m) * kImages, first, sum);
    });
  }

 private:
  template <class Sums>
  [[gnu::always_inline]] void add(const Element* a, const Element* b, Sums& tile) const {
    const auto multiply = [&](auto halves) {
      tile.for_each([&](int m, int v, __m512& sum) {
        sum = add_products(sum, factor_at(a + m * kDepth<Element>), halves.values[v]);
      });
    };
    std::int64_t i = 0;
    for (; i + kDepth<Element> <= inner; i += kDepth<Element>) {
      multiply(halves_at(b));
      a += outputs * kDepth<Element>;
      b += kImages * kDepth<Element>;
    }
    if (i < inner) multiply(last_halves_at(b));
  }
};

template <class Element>
void forward(const ConvolutionShape& s, const Element* block, const Element* packed,
             const Element* bias, std::int64_t y, Element* out) {
  const std::int64_t row = s.width * s.in_channels * kImages;
  Pixel<Element> pixel{{s.kernel, packed_tap<Element>(s.run(), s.out_channels), row},
                       {1, 0, 0},
                       s.run(),
                       s.out_channels,
                       packed,
                       block + y * row,
                       bias,
                       out};
  for (std::int64_t x = 0; x < s.out_width(); ++x) {
    tile_rows<2>(s.out_channels, 0, pixel);
    pixel.from += s.in_channels * kImages;
    pixel.to += s.out_channels * kImages;
  }
}

/// The taps, in one direction, through which outputs take number `input` of the inputs.
struct TapRange {
  std::int64_t first, count;

  TapRange(std::int64_t kernel, std::int64_t outputs, std::int64_t input)
      : first(input < outputs ? 0 : input - outputs + 1),
        count((input < kernel ? input + 1 : kernel) - first) {}
};

template <class Element>
void backward_data(const ConvolutionShape& s, const Element* gradient, const Element* packed,
                   std::int64_t y, Element* into) {
  const std::int64_t tap = packed_tap<Element>(s.out_channels, s.in_channels);
  const std::int64_t output = s.out_channels * kImages;
  const TapRange down(s.kernel, s.out_height(), y);
  into += y * s.width * s.in_channels * kImages;
  for (std::int64_t x = 0; x < s.width; ++x, into += s.in_channels * kImages) {
    const TapRange right(s.kernel, s.out_width(), x);
    const std::int64_t first = (y - down.first) * s.out_width() + x - right.first;
    tile_rows<2>(s.in_channels, 0,
                 Pixel<Element>{{down.count, s.kernel * tap, -s.out_width() * output},
                                {right.count, tap, -output},
                                s.out_channels,
                                s.in_channels,
                                packed + (down.first * s.kernel + right.first) * tap,
                                gradient + first * output,
                                nullptr,
                                into});
  }
}

/// How far apart the images of neighbouring blocks, rows and pixels are.
struct Steps {
  std::int64_t block, row, pixel;

  static Steps of(std::int64_t height, std::int64_t width, std::int64_t channels) {
    const std::int64_t pixel = channels * kImages;
    return {height * width * pixel, width * pixel, pixel};
  }
};

/// Products of values of the same image, added up over the images and over all output pixels.
template <class Element>
struct WeightTile {
  std::int64_t blocks, rows, pixels;
  Steps of_a, of_b;
  const Element* a;   // the images for each row of the tile
  const Element* b;   // those for each column
  std::int64_t step;  // between columns of the result
  Element* to;

  template <class Sums>
  void tile(typename Sums::Shapes shapes, std::int64_t row, std::int64_t vector) const {
    Sums tile(shapes);
    tile.set_to_zero();
    for (std::int64_t i = 0; i < blocks * rows; ++i) {
      const Element* at_a = a + i / rows * of_a.block + i % rows * of_a.row + row * kImages;
      const Element* at_b = b + i / rows * of_b.block + i % rows * of_b.row + vector * kImages;
      for (std::int64_t x = 0; x < pixels; ++x, at_a += of_a.pixel, at_b += of_b.pixel) {
        for (std::int64_t part = 0; part < kImages; part += kVectorElements<Element>) {
          tile.for_each([&](int m, int v, __m512& sum) {
            sum = add_products(sum, images_at(at_a + part + m * kImages),
                               images_at(at_b + part + v * kImages));
          });
        }
      }
    }
    tile.for_each([&](int m, int v, const __m512& sum) {
      store_rounded(to + (vector + v) * step + row + m, 1, _mm512_set1_ps(sum_of_lanes(sum)));
    });
  }

 private:
  /// GCC 12 warns of its own header where this is _mm512_reduce_add_ps.
  static float sum_of_lanes(__m512 values) {
    alignas(64) float sums[kLanes];
    _mm512_store_ps(sums, values);
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
  }
};

template <class Element>
void backward_weights(const ConvolutionShape& s, const Element* blocks, const Element* gradient,
                      std::int64_t count, std::int64_t ky, std::int64_t begin, std::int64_t end,
                      Element* weights) {
  const Steps of_input = Steps::of(s.height, s.width, s.in_channels);
  const std::int64_t step = s.kernel * s.run();
  for_each_tile(s.run(), end - begin,
                WeightTile<Element>{count, s.out_height(), s.out_width(), of_input,
                                    Steps::of(s.out_height(), s.out_width(), s.out_channels),
                                    blocks + ky * of_input.row, gradient + begin * kImages, step,
                                    weights + begin * step + ky * s.run()});
}

template <class Element>
void backward_bias(const ConvolutionShape& s, const Element* gradient, std::int64_t count,
                   std::int64_t begin, std::int64_t end, Element* bias) {
  Element ones[kImages];
  for (Element& one : ones) one = sizeof(Element) == 2 ? Element{0x3f80} : Element{1};
  for_each_tile(1, end - begin,
                WeightTile<Element>{count,
                                    s.out_height(),
                                    s.out_width(),
                                    {0, 0, 0},
                                    Steps::of(s.out_height(), s.out_width(), s.out_channels),
                                    ones,
                                    gradient + begin * kImages,
                                    1,
                                    bias + begin});
}

template <class Element>
constexpr HwcnConvolution<Element> kKernels{&to_hwcn<Element>,          &from_hwcn<Element>,
                                            &forward_weights<Element>,  &data_weights<Element>,
                                            &pack_forward<Element>,     &pack_data<Element>,
                                            &forward<Element>,          &backward_data<Element>,
                                            &backward_weights<Element>, &backward_bias<Element>};

}  // namespace

template <class Element>
const HwcnConvolution<Element>* avx512_hwcn() {
  return cpu_features().avx512_bf16 ? &kKernels<Element> : nullptr;
}

#else

namespace mnist_train::models {

template <class Element>
const HwcnConvolution<Element>* avx512_hwcn() {
  return nullptr;
}

#endif

template const HwcnConvolution<Bf16Bits>* avx512_hwcn();
template const HwcnConvolution<float>* avx512_hwcn();

}  // namespace mnist_train::models
