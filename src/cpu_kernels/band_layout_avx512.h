#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/convolution_kernels.h"
#include "cpu_kernels/lanes_avx512.h"

/// Gradients of the weights of convolutions: products that sum over pixels and images. The first
/// factor is the gradient of the output as [y][x][channel][image], the second one the input as
/// [y][x][image][channel] or, if few channels would not fill vectors, [y][image][x][channel] with
/// zeros for the padding, so that the channels of adjacent pixels are adjacent. For bf16, a word is
/// a pair of images of one channel in both. If even these would not fill vectors, the second factor
/// is [y][x][channel][image] with that padding, and sums are vectors of images.
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
      const std::int64_t width = left + s.in.width + right;
      b_pixel = channels * (view.by_images ? kImages : kDepth<Element>);
      b_word = (ceil_divide(width * b_pixel, kLine) | 1) * kLine;
      b_row = view.by_images ? width * b_pixel : kImageWords<Element> * b_word;
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

/// A band with its operands.
template <class Element>
struct Band {
  Band(const WeightGradientView& v, const GradientBand& p, const WeightGradientOperands<Element>& o)
      : view(v), part(p), operands(o), layout(v, p) {}

  /// Returns the first factor: for bf16, in scratch memory.
  const Element* first_factor() const {
    if (kDepth<Element> == 2) return operands.scratch;
    return operands.gradient + part.block_begin * layout.a_block +
           part.row_begin * view.shape.out.width * layout.a_pixel;
  }

  const WeightGradientView& view;
  const GradientBand& part;
  const WeightGradientOperands<Element>& operands;
  BandLayout<Element> layout;
};

/// Copies a row of the input with zeros for the padding.
template <class Element>
void copy_row(const ConvolutionShape& s, const BandLayout<Element>& layout, const Element* from,
              Element* to) {
  const std::int64_t left = layout.left * layout.b_pixel;
  const std::int64_t size = s.in.width * layout.b_pixel;
  __builtin_memset(to, 0, sizeof(Element) * left);
  __builtin_memcpy(to + left, from, sizeof(Element) * size);
  __builtin_memset(to + left + size, 0, sizeof(Element) * (layout.right * layout.b_pixel));
}

/// Copies a row of the input as the second factor, with zeros for the padding.
template <class Element>
void transpose_row(const ConvolutionShape& s, const BandLayout<Element>& layout,
                   const Element* from, Element* to) {
  const std::int64_t channels = words<Element>(s.in.channels) * kDepth<Element>;
  [[maybe_unused]] const PairSplitter splitter;
  for (std::int64_t x = 0; x < s.in.width; ++x, from += channels * kImages) {
    for (std::int64_t channel = 0; channel < channels; channel += kLanes) {
      const std::int64_t count = smaller(kLanes, channels - channel);
      for (int half = 0; half < kImageWords<Element> / kLanes; ++half) {
        Block block = {};
        const Element* const at_channel = from + channel * kImages;
        for (std::int64_t i = 0; i < count; i += kDepth<Element>) {
          if constexpr (kDepth<Element> == 2) {
            splitter.split(at_channel + i * kImages, block[i], block[i + 1]);
          } else {
            block[i] = _mm512_loadu_si512(at_channel + i * kImages + half * kLanes);
          }
        }
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

template <class Element>
std::int64_t gradient_scratch(const WeightGradientView& view, const GradientBand& band) {
  return BandLayout<Element>(view, band).size(band);
}

template <class Element>
std::int64_t gradient_rows(const WeightGradientView& view, const GradientBand& band) {
  const std::int64_t out_rows = kDepth<Element> == 1 ? 0 : band.row_end - band.row_begin;
  return (band.block_end - band.block_begin) * (InputRows(view.shape, band).count() + out_rows);
}

/// Rows are those of the input, then those of the gradient, of each block.
template <class Element>
void rearrange(const WeightGradientView& view, const GradientBand& part,
               const WeightGradientOperands<Element>& operands, std::int64_t begin,
               std::int64_t end) {
  const ConvolutionShape& s = view.shape;
  const BandLayout<Element> layout(view, part);
  const std::int64_t of_block =
      gradient_rows<Element>(view, part) / (part.block_end - part.block_begin);
  const std::int64_t in_row = s.in.block_size<Element>() / s.in.height;
  const std::int64_t out_row = s.out.width * layout.a_pixel;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t block = i / of_block;
    const std::int64_t row = i % of_block;
    if (row < layout.rows.count()) {
      const std::int64_t y = (part.block_begin + block) * s.in.height + layout.rows.begin + row;
      Element* const to =
          operands.scratch + layout.b_begin + block * layout.b_block + row * layout.b_row;
      const auto copy = view.by_images ? &copy_row<Element> : &transpose_row<Element>;
      copy(s, layout, operands.in + y * in_row, to);
    } else if constexpr (kDepth<Element> == 2) {  // pairs of channels become channels
      const std::int64_t y = row - layout.rows.count();
      const Element* from =
          operands.gradient +
          ((part.block_begin + block) * s.out.height + part.row_begin + y) * out_row;
      Element* to = operands.scratch + block * layout.a_block + y * out_row;
      const PairSplitter splitter;
      for (Element* const row_end = to + out_row; to < row_end; to += 2 * kImages) {
        __m512i first;
        __m512i second;
        splitter.split(from, first, second);
        _mm512_storeu_si512(to, first);
        _mm512_storeu_si512(to + kImages, second);
        from += kWordSize<Element>;
      }
    }
  }
}

}  // namespace mnist_train::cpu_kernels::avx512
