#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/amx.h"
#include "cpu_kernels/convolution_kernels.h"
#include "cpu_kernels/register_sums_avx512.h"

/// Gradients of the weights of convolutions: products that sum over pixels and images. The first
/// factor is the gradient of the output as [y][x][channel][image], the second one the input as
/// [y][x][image][channel] or, if few channels would not fill vectors, [y][image][x][channel] with
/// zeros for the padding, so that the channels of adjacent pixels are adjacent. For bf16, a word is
/// a pair of images of one channel in both.
namespace mnist_train::cpu_kernels::avx512 {

/// Words of a channel's images.
template <class Element>
inline constexpr std::int64_t kImageWords = kImages / kDepth<Element>;

/// Rearranges a pair of channels of 32 images each: the images of the first, then of the second.
struct PairSplitter {
  __m512i even, odd;

  PairSplitter() {
    const __m512i counts = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    // Indices 4i and 4i + 2 in the halves of word i select the first channel of two images.
    const __m512i first = _mm512_slli_epi32(counts, 2);
    even = _mm512_or_si512(first,
                           _mm512_slli_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(2)), 16));
    odd = _mm512_add_epi16(even, _mm512_set1_epi16(1));
  }
  void split(const Bf16Bits* pair, __m512i& first, __m512i& second) const {
    const __m512i a = _mm512_loadu_si512(pair);
    const __m512i b = _mm512_loadu_si512(pair + kWordSize<Bf16Bits> / 2);
    first = _mm512_permutex2var_epi16(a, even, b);
    second = _mm512_permutex2var_epi16(a, odd, b);
  }
};

/// Input rows that the output rows of a band need.
struct InputRows {
  std::int64_t begin, end;

  InputRows(const ConvolutionShape& s, const GradientBand& band)
      : begin(larger(0, band.row_begin * s.stride.height - s.padding.height)),
        end(smaller(s.in.height, (band.row_end - 1) * s.stride.height - s.padding.height +
                                     (s.kernel.height - 1) * s.dilation.height + 1)) {}
  std::int64_t count() const { return larger(0, end - begin); }
};

/// Output positions from `from` to `to` that multiply an input position, `offset` after `stride`
/// times their own, of `in`.
struct ValidRange {
  std::int64_t begin, end;

  ValidRange(std::int64_t from, std::int64_t to, std::int64_t offset, std::int64_t stride,
             std::int64_t in)
      : begin(larger(from, offset >= 0 ? 0 : (-offset + stride - 1) / stride)),
        end(smaller(to, in - offset <= 0 ? 0 : (in - offset + stride - 1) / stride)) {}
};

/// The factors of a band, in elements. The first one is a copy only for bf16.
template <class Element>
struct BandLayout {
  std::int64_t a_pixel, a_block;
  std::int64_t b_pixel, b_word, b_row, b_block;
  std::int64_t left = 0, right = 0;  // pixels of padding in the second factor
  std::int64_t b_begin;              // in scratch memory, after the copy of the first factor
  InputRows rows;

  BandLayout(const WeightGradientView& view, const GradientBand& band) : rows(view.shape, band) {
    const ConvolutionShape& s = view.shape;
    a_pixel = words<Element>(s.out.channels) * kWordSize<Element>;
    a_block = kDepth<Element> == 1 ? s.out.block_size<Element>()
                                   : (band.row_end - band.row_begin) * s.out.width * a_pixel;
    // Odd numbers of cache lines, since otherwise a column's words would share few sets.
    constexpr std::int64_t kLine = kLanes * kDepth<Element>;
    const std::int64_t channels = words<Element>(s.in.channels) * kDepth<Element>;
    if (view.merges_columns) {
      const std::int64_t padded_width =
          (s.out.width - 1) * s.stride.width + (s.kernel.width - 1) * s.dilation.width + 1;
      left = s.padding.width;
      right = larger(0, padded_width - left - s.in.width);
      b_pixel = channels * kDepth<Element>;
      b_word = (ceil_divide((left + s.in.width + right) * b_pixel, kLine) | 1) * kLine;
      b_row = kImageWords<Element> * b_word;
    } else {
      b_word = (ceil_divide(channels * kDepth<Element>, kLine) | 1) * kLine;
      b_pixel = kImageWords<Element> * b_word;
      b_row = s.in.width * b_pixel;
    }
    b_block = rows.count() * b_row;
    b_begin = kDepth<Element> == 1 ? 0 : (band.block_end - band.block_begin) * a_block + kSpace;
  }

  std::int64_t size(const GradientBand& band) const {
    return b_begin + (band.block_end - band.block_begin) * b_block + kSpace;
  }

 private:
  // After each factor, for registers that reach beyond it.
  static constexpr std::int64_t kSpace = kSlackBytes / sizeof(Element);
};

#ifdef __AVX512BF16__
/// Copies pixels of pairs of channels as channels.
inline void split_pairs(const Bf16Bits* from, std::int64_t pairs, Bf16Bits* to) {
  const PairSplitter splitter;
  for (; pairs > 0; --pairs, from += kWordSize<Bf16Bits>, to += 2 * kImages) {
    __m512i first;
    __m512i second;
    splitter.split(from, first, second);
    _mm512_storeu_si512(to, first);
    _mm512_storeu_si512(to + kImages, second);
  }
}

/// Loads 16 words of images of up to 16 channels, a vector per channel.
inline void load_channel_images(const Bf16Bits* from, std::int64_t channels, int /*half*/,
                                Block& block) {
  const PairSplitter splitter;
  for (std::int64_t i = 0; i < channels; i += 2) {
    splitter.split(from + i * kImages, block[i], block[i + 1]);
  }
}
#endif
/// For fp32, those of one half of the images.
inline void load_channel_images(const float* from, std::int64_t channels, int half, Block& block) {
  for (std::int64_t i = 0; i < channels; ++i) {
    block[i] = _mm512_loadu_si512(from + i * kImages + half * kLanes);
  }
}

/// Copies a row of the input as the second factor, with zeros for the padding.
template <class Element>
void transpose_row(const ConvolutionShape& s, const BandLayout<Element>& layout,
                   const Element* from, Element* to) {
  const std::int64_t channels = words<Element>(s.in.channels) * kDepth<Element>;
  for (std::int64_t x = 0; x < s.in.width; ++x, from += channels * kImages) {
    for (std::int64_t channel = 0; channel < channels; channel += kLanes) {
      const std::int64_t count = smaller(kLanes, channels - channel);
      for (int half = 0; half < kImageWords<Element> / kLanes; ++half) {
        Block block = {};
        load_channel_images(from + channel * kImages, count, half, block);
        transpose(block);
        Element* const at = to + (layout.left + x) * layout.b_pixel + channel * kDepth<Element> +
                            half * kLanes * layout.b_word;
        for (int i = 0; i < kLanes; ++i) {
          _mm512_mask_storeu_epi32(at + i * layout.b_word, first_lanes(count), block[i]);
        }
      }
    }
  }
  const std::int64_t left = layout.left * layout.b_pixel;
  const std::int64_t end = left + s.in.width * layout.b_pixel;
  for (std::int64_t i = 0; i < kImageWords<Element> && layout.left + layout.right > 0; ++i) {
    Element* const word = to + i * layout.b_word;
    __builtin_memset(word, 0, sizeof(Element) * left);
    __builtin_memset(word + end, 0, sizeof(Element) * (layout.right * layout.b_pixel));
  }
}

/// Sums of A x 16 outputs and B x 16 columns by AMX. They stay in registers for a band.
template <int A, int B>
class AmxGradient {
 public:
  AmxGradient(const float* sums, std::int64_t step) { Sums::load_sums(sums, step); }
  /// Adds the products of `count` pixels.
  void add(const Bf16Bits* a, std::int64_t a_step, const Bf16Bits* b, std::int64_t b_step,
           std::int64_t b_word, std::int64_t count) {
    for (; count > 0; --count, a += a_step, b += b_step) {
      Sums::add(a, a + kLanes * kImages, b, sizeof(Bf16Bits) * b_word);
    }
  }
  void add_to(float* sums, std::int64_t step) { Sums::store_sums(sums, step); }

 private:
  using Sums = amx::Sums<A, B>;
};

/// Sums of M outputs and V vectors of columns. Registers sum over few pixels, since errors grow
/// with the number of sums on top of each other.
template <int M, int V>
class RegisterGradient {
 public:
  RegisterGradient(const float* /*sums*/, std::int64_t /*step*/) {}
  /// Adds the products of `count` pixels.
  template <class Element>
  void add(const Element* a, std::int64_t a_step, const Element* b, std::int64_t b_step,
           std::int64_t b_word, std::int64_t count) {
    while (count > 0) {
      RegisterSums<M, V> sums;
      sums.for_each([](int, int, __m512& sum) { sum = _mm512_setzero_ps(); });
      for (std::int64_t i = smaller(count, kPixels); i > 0; --i, a += a_step, b += b_step) {
        sums.add(Factors<Element>{a, kImages, kDepth<Element>, b, b_word}, kImageWords<Element>);
      }
      add(sums, of_band_, kWidth);
      count -= kPixels;
    }
  }
  void add_to(float* sums, std::int64_t step) {
    RegisterSums<M, V> of_band;
    of_band.load(of_band_, kWidth);
    add(of_band, sums, step);
  }

 private:
  static constexpr std::int64_t kPixels = 8;
  static constexpr std::int64_t kWidth = V * kLanes;

  static void add(RegisterSums<M, V>& sums, float* to, std::int64_t step) {
    sums.for_each([&](int m, int v, __m512& sum) {
      float* const at = to + m * step + v * kLanes;
      _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), sum));
    });
  }

  alignas(64) float of_band_[M * kWidth] = {};
};

/// Outputs and columns of a kernel row, and the pixels of an output row whose products they sum.
template <class Element>
struct GradientTile {
  const Element* a;  // of the first output and pixel
  const Element* b;  // of the first column and pixel
  std::int64_t ky, pixels;
  float* sums;
};

/// Adds the products of a band.
template <class Element, class Gradient>
void add_tile(const WeightGradientView& view, const GradientBand& band,
              const BandLayout<Element>& layout, const GradientTile<Element>& tile) {
  const ConvolutionShape& s = view.shape;
  const std::int64_t row_offset = tile.ky * s.dilation.height - s.padding.height;
  const ValidRange rows(band.row_begin, band.row_end, row_offset, s.stride.height, s.in.height);
  const std::int64_t b_step = s.stride.width * layout.b_pixel;
  Gradient gradient(tile.sums, view.columns);
  for (std::int64_t block = 0; block < band.block_end - band.block_begin; ++block) {
    for (std::int64_t y = rows.begin; y < rows.end; ++y) {
      gradient.add(
          tile.a + block * layout.a_block + (y - band.row_begin) * s.out.width * layout.a_pixel,
          layout.a_pixel,
          tile.b + block * layout.b_block +
              (y * s.stride.height + row_offset - layout.rows.begin) * layout.b_row,
          b_step, layout.b_word, tile.pixels);
    }
  }
  gradient.add_to(tile.sums, view.columns);
}

template <class Element>
using AddTile = void (*)(const WeightGradientView&, const GradientBand&, const BandLayout<Element>&,
                         const GradientTile<Element>&);

/// Returns the function for tiles of `rows` outputs and one or two vectors of columns.
template <class Element>
AddTile<Element> add_tile_of(std::int64_t rows, bool two_vectors) {
  static constexpr auto kFunction = []<int M, int V>() {
    return &add_tile<Element, RegisterGradient<M, V>>;
  };
  static constexpr AddTile<Element> kFunctions[kMostRows / 2][2] = {
      {kFunction.template operator()<2, 1>(), kFunction.template operator()<2, 2>()},
      {kFunction.template operator()<4, 1>(), kFunction.template operator()<4, 2>()},
      {kFunction.template operator()<6, 1>(), kFunction.template operator()<6, 2>()},
      {kFunction.template operator()<8, 1>(), kFunction.template operator()<8, 2>()},
      {kFunction.template operator()<10, 1>(), kFunction.template operator()<10, 2>()},
      {kFunction.template operator()<12, 1>(), kFunction.template operator()<12, 2>()},
      {kFunction.template operator()<14, 1>(), kFunction.template operator()<14, 2>()}};
  return kFunctions[rows / 2 - 1][two_vectors ? 1 : 0];
}
inline AddTile<Bf16Bits> add_amx_tile_of(bool two_panels, bool two_vectors) {
  if (two_panels) {
    return two_vectors ? &add_tile<Bf16Bits, AmxGradient<2, 2>>
                       : &add_tile<Bf16Bits, AmxGradient<2, 1>>;
  }
  return two_vectors ? &add_tile<Bf16Bits, AmxGradient<1, 2>>
                     : &add_tile<Bf16Bits, AmxGradient<1, 1>>;
}

/// Adds the products of one group and kernel row for columns that are adjacent in memory.
template <class Element>
void add_columns(const WeightGradientView& view, const GradientBand& band,
                 const BandLayout<Element>& layout, const GradientTile<Element>& first,
                 std::int64_t columns) {
  const std::int64_t most = view.panel_rows * (view.by_amx ? 2 : 1);
  for (std::int64_t o = 0; o < view.rows; o += most) {
    for (std::int64_t column = 0; column < columns; column += 2 * kLanes) {
      const bool two_vectors = columns - column > kLanes;
      AddTile<Element> add = nullptr;
      if constexpr (kDepth<Element> == 2) {
        if (view.by_amx) add = add_amx_tile_of(view.rows - o > kLanes, two_vectors);
      }
      if (!view.by_amx) add = add_tile_of<Element>(view.panel_rows, two_vectors);
      GradientTile<Element> tile = first;
      tile.a += o * kImages;
      tile.b += column * kDepth<Element>;
      tile.sums += o * view.columns + column;
      add(view, band, layout, tile);
    }
  }
}

template <class Element>
void add_products(const WeightGradientView& view, const GradientBand& band,
                  const BandLayout<Element>& layout, const Element* a, const Element* b,
                  float* sums) {
  const ConvolutionShape& s = view.shape;
  for (std::int64_t group = 0; group < s.groups; ++group) {
    const Element* const a_group = a + group * s.group_out() * kImages;
    const Element* const b_group = b + group * s.group_in() * kDepth<Element>;
    for (std::int64_t ky = 0; ky < s.kernel.height; ++ky) {
      float* const row = view.sums_of(sums, group, ky);
      if (view.merges_columns) {
        add_columns(view, band, layout, {a_group, b_group, ky, s.out.width, row}, view.columns);
        continue;
      }
      for (std::int64_t kx = 0; kx < s.kernel.width; ++kx) {
        const std::int64_t offset = kx * s.dilation.width - s.padding.width;
        const ValidRange pixels(0, s.out.width, offset, s.stride.width, s.in.width);
        if (pixels.begin >= pixels.end) continue;
        add_columns(view, band, layout,
                    {a_group + pixels.begin * layout.a_pixel,
                     b_group + (pixels.begin * s.stride.width + offset) * layout.b_pixel, ky,
                     pixels.end - pixels.begin, row + kx * view.column_run},
                    view.column_run);
      }
    }
  }
}

template <class Element>
std::int64_t gradient_scratch(const WeightGradientView& view, const GradientBand& band) {
  return BandLayout<Element>(view, band).size(band);
}

/// Returns the first factor of a band: for bf16, in scratch memory.
inline const float* first_factor(const WeightGradientView& view, const GradientBand& band,
                                 const BandLayout<float>& layout, const float* gradient,
                                 float* /*scratch*/) {
  return gradient + band.block_begin * layout.a_block +
         band.row_begin * view.shape.out.width * layout.a_pixel;
}
#ifdef __AVX512BF16__
inline const Bf16Bits* first_factor(const WeightGradientView& view, const GradientBand& band,
                                    const BandLayout<Bf16Bits>& layout, const Bf16Bits* gradient,
                                    Bf16Bits* scratch) {
  const ImageShape& out = view.shape.out;
  for (std::int64_t block = band.block_begin; block < band.block_end; ++block) {
    split_pairs(
        gradient + block * out.block_size<Bf16Bits>() + band.row_begin * out.width * layout.a_pixel,
        layout.a_block / kWordSize<Bf16Bits>,
        scratch + (block - band.block_begin) * layout.a_block);
  }
  return scratch;
}
#endif

template <class Element>
void add_weight_gradient(const WeightGradientView& view, const GradientBand& band,
                         const Element* in, const Element* gradient, Element* scratch,
                         float* sums) {
  const ConvolutionShape& s = view.shape;
  const BandLayout<Element> layout(view, band);
  const std::int64_t in_block = s.in.block_size<Element>();
  Element* const b = scratch + layout.b_begin;
  for (std::int64_t block = band.block_begin; block < band.block_end; ++block) {
    for (std::int64_t y = layout.rows.begin; y < layout.rows.end; ++y) {
      transpose_row(
          s, layout, in + block * in_block + y * (in_block / s.in.height),
          b + (block - band.block_begin) * layout.b_block + (y - layout.rows.begin) * layout.b_row);
    }
  }
  const Element* const a = first_factor(view, band, layout, gradient, scratch);
  if (!view.by_amx) return add_products(view, band, layout, a, b, sums);
  const amx::Registers registers;
  add_products(view, band, layout, a, b, sums);
}

template <class Element>
void round(const float* sums, std::int64_t count, Element* to) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 mask = first_lanes(count - i);
    store_rounded(to + i, mask, _mm512_maskz_loadu_ps(mask, sums + i));
  }
}

}  // namespace mnist_train::cpu_kernels::avx512
