// Compiled with AVX-512: must not use the standard library, whose inline functions could then end
// up in code for all processors.
#include "base/cpu.h"
#include "models/hwcn_convolution.h"

#ifdef __AVX512BF16__

#include "models/tiles_avx512.h"

namespace mnist_train::models {

namespace {

using namespace avx512;

// Blocks of images [height,width,channels,32] in vectors, and sums over them.

inline constexpr std::int64_t kImages = ImageBlock::kImages;

inline __m512i images_at(const Bf16Bits* from) { return _mm512_loadu_si512(from); }
inline __m512 images_at(const float* from) { return _mm512_loadu_ps(from); }

// These take the images of a block as two vectors, one for each half of them, as `add_products`
// wants its factors. In bf16 a lane has two elements of its image, which makes every other four
// images a half.

struct Bf16Halves {
  __m512i values[2];
};
struct F32Halves {
  __m512 values[2];
};

inline Bf16Halves zipped(__m512i even, __m512i odd) {
  return {{_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)}};
}
inline Bf16Halves halves_at(const Bf16Bits* from) {
  return zipped(images_at(from), images_at(from + kImages));
}
/// Returns those of an element that has no other one behind it.
inline Bf16Halves last_halves_at(const Bf16Bits* from) {
  return zipped(images_at(from), _mm512_setzero_si512());
}
inline F32Halves halves_at(const float* from) {
  return {{images_at(from), images_at(from + kLanes)}};
}
inline F32Halves last_halves_at(const float* from) { return halves_at(from); }

/// Rounds the sums of the halves and stores them in the order of the images.
inline void store_halves(Bf16Bits* to, __m512 first, __m512 second) {
  alignas(64) static constexpr Bf16Bits kOrder[] = {0,  1,  2,  3,  16, 17, 18, 19, 4,  5,  6,
                                                    7,  20, 21, 22, 23, 8,  9,  10, 11, 24, 25,
                                                    26, 27, 12, 13, 14, 15, 28, 29, 30, 31};
  const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), rounded));
}
inline void store_halves(float* to, __m512 first, __m512 second) {
  _mm512_storeu_ps(to, first);
  _mm512_storeu_ps(to + kLanes, second);
}

/// Takes the elements of images in the order in which they lie there, which is not that of a block
/// where an image is [channels,pixels].
class ElementOrder {
 public:
  ElementOrder(const ImageBlock& block, std::int64_t element)
      : size_(block.size), planes_(block.planes) {
    const std::int64_t pixels = size_ / planes_;
    row_ = element % pixels * planes_ + element / pixels;
  }

  /// Returns where the next element's images begin in a block.
  std::int64_t next() {
    const std::int64_t place = row_ * kImages;
    row_ += planes_;
    if (row_ >= size_) row_ -= size_ - 1;
    return place;
  }

 private:
  std::int64_t size_, planes_, row_;
};

/// Up to 64 bytes of each of 32 images, as 32-bit words: of an image each, or, once transposed, of
/// 16 images each.
using ImageWords = __m512i[2][kLanes];

/// Returns a mask of the bytes that the first `count` elements of a vector take.
template <class Element>
__mmask64 bytes_of(std::int64_t count) {
  const std::int64_t left = 64 - count * static_cast<std::int64_t>(sizeof(Element));
  return left == 64 ? 0 : ~std::uint64_t{0} >> left;
}

/// Returns a vector of 32 elements, of which element i is `number(i)`.
template <class Number>
__m512i order(const Number& number) {
  alignas(64) Bf16Bits numbers[kPairs];
  for (int i = 0; i < kPairs; ++i) numbers[i] = static_cast<Bf16Bits>(number(i));
  return _mm512_load_si512(numbers);
}

// These store transposed words as elements of a block, or load them.

void store_block(const ImageWords& words, std::int64_t count, ElementOrder place, Bf16Bits* to) {
  const __m512i even = order([](int i) { return 2 * i; });
  const __m512i odd = order([](int i) { return 2 * i + 1; });
  for (std::int64_t i = 0; i < count; ++i) {
    _mm512_storeu_si512(
        to + place.next(),
        _mm512_permutex2var_epi16(words[0][i / 2], i % 2 == 0 ? even : odd, words[1][i / 2]));
  }
}
void store_block(const ImageWords& words, std::int64_t count, ElementOrder place, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    float* const element = to + place.next();
    _mm512_storeu_si512(element, words[0][i]);
    _mm512_storeu_si512(element + kLanes, words[1][i]);
  }
}

void load_block(const Bf16Bits* from, std::int64_t count, ElementOrder place, ImageWords& words) {
  const __m512i first = order([](int i) { return i / 2 + i % 2 * kPairs; });
  const __m512i second = order([](int i) { return i / 2 + kLanes + i % 2 * kPairs; });
  for (std::int64_t i = 0; i < kPairs; i += 2) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i a = i < count ? images_at(from + place.next()) : zero;
    const __m512i b = i + 1 < count ? images_at(from + place.next()) : zero;
    words[0][i / 2] = _mm512_permutex2var_epi16(a, first, b);
    words[1][i / 2] = _mm512_permutex2var_epi16(a, second, b);
  }
}
void load_block(const float* from, std::int64_t count, ElementOrder place, ImageWords& words) {
  for (std::int64_t i = 0; i < kLanes; ++i) {
    const float* const element = i < count ? from + place.next() : nullptr;
    for (std::int64_t half = 0; half < 2; ++half) {
      words[half][i] =
          element == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(element + half * kLanes);
    }
  }
}

template <class Element>
void to_hwcn(const ImageBlock& block, const Element* images, std::int64_t begin, std::int64_t end,
             Element* to) {
  constexpr std::int64_t kPart = kVectorElements<Element>;
  images += block.first * block.size;
  for (; begin < end; begin += kPart) {
    const std::int64_t elements = end - begin < kPart ? end - begin : kPart;
    ImageWords words;
    for (std::int64_t i = 0; i < kImages; ++i) {
      words[i / kLanes][i % kLanes] = _mm512_maskz_loadu_epi8(
          bytes_of<Element>(i < block.count ? elements : 0), images + i * block.size + begin);
    }
    transpose(words[0]);
    transpose(words[1]);
    store_block(words, elements, ElementOrder(block, begin), to);
  }
}

template <class Element>
void from_hwcn(const ImageBlock& block, const Element* from, std::int64_t begin, std::int64_t end,
               Element* images) {
  constexpr std::int64_t kPart = kVectorElements<Element>;
  images += block.first * block.size;
  for (; begin < end; begin += kPart) {
    const std::int64_t elements = end - begin < kPart ? end - begin : kPart;
    ImageWords words;
    load_block(from, elements, ElementOrder(block, begin), words);
    transpose(words[0]);
    transpose(words[1]);
    for (std::int64_t i = 0; i < block.count; ++i) {
      _mm512_mask_storeu_epi8(images + i * block.size + begin, bytes_of<Element>(elements),
                              words[i / kLanes][i % kLanes]);
    }
  }
}

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
