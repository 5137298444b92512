#pragma once

// Only for sources compiled with AVX-512; see lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"

/// Weight gradients of convolutions: products summed over pixels and images. The first factor is
/// the output gradient as [y][x][channel][image]. If the channels fill pairs of vectors, and for
/// Winograd's algorithm, the second factor is the input as [y][x][image][channel]; otherwise
/// [y][image][x][channel] with zero padding, so that the channels of adjacent pixels are adjacent.
/// For bf16, each word of both factors holds one channel of two images. In fp32, if a kernel row
/// has at most 12 columns, the second factor is [y][x][channel][image] with the same padding, and
/// vectors of sums hold images.
namespace mnist_train::cpu_kernels::avx512 {

/// Splits interleaved pairs of channels of 32 images into a vector for each of the two channels.
struct PairSplitter {
  __m512i even, odd;

  PairSplitter() {
    const __m512i indices = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    // The indices 4i and 4i + 2 in the halves of word i select the first channel of two images.
    const __m512i first = _mm512_slli_epi32(indices, 2);
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

/// The output positions between `from` and `to` whose input position, position * `stride` +
/// `offset`, is inside an axis of size `in`.
struct ValidRange {
  std::int64_t begin, end;

  ValidRange(std::int64_t from, std::int64_t to, std::int64_t offset, std::int64_t stride,
             std::int64_t in)
      : begin(larger(from, offset >= 0 ? 0 : (-offset + stride - 1) / stride)),
        end(smaller(to, in - offset <= 0 ? 0 : (in - offset + stride - 1) / stride)) {}
};

/// Copies a row of the input, with zero padding.
template <class Element>
void copy_row(const ConvolutionShape& s, const GradientBand& band, const Element* from,
              Element* to) {
  const std::int64_t left = band.left * band.b_pixel;
  const std::int64_t size = s.in.width * band.b_pixel;
  __builtin_memset(to, 0, sizeof(Element) * left);
  __builtin_memcpy(to + left, from, sizeof(Element) * size);
  __builtin_memset(to + left + size, 0, sizeof(Element) * (band.right * band.b_pixel));
}

/// Copies a row of the input into the layout of the second factor, with zero padding.
template <class Element>
void transpose_row(const ConvolutionShape& s, const GradientBand& band, const Element* from,
                   Element* to) {
  const std::int64_t channels = round_up(s.in.channels, kDepth<Element>);
  [[maybe_unused]] const PairSplitter splitter;
  for (std::int64_t x = 0; x < s.in.width; ++x, from += channels * kImages) {
    for (std::int64_t channel = 0; channel < channels; channel += kLanes) {
      const std::int64_t count = smaller(kLanes, channels - channel);
      for (int half = 0; half < kImageWords<Element> / kLanes; ++half) {
        Block block = {};
        const Element* const channels_begin = from + channel * kImages;
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i += kDepth<Element>) {
          if (i >= count) break;
          if constexpr (kDepth<Element> == 2) {
            splitter.split(channels_begin + i * kImages, block[i], block[i + 1]);
          } else {
            block[i] = _mm512_loadu_si512(channels_begin + i * kImages + half * kLanes);
          }
        }
        transpose(block);
        Element* const dest = to + (band.left + x) * band.b_pixel + channel * kDepth<Element> +
                              half * kLanes * band.b_word;
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) {
          _mm512_mask_storeu_epi32(dest + i * band.b_word, first_lanes(count), block[i]);
        }
      }
    }
  }
  const std::int64_t left = band.left * band.b_pixel;
  const std::int64_t end = left + s.in.width * band.b_pixel;
  for (std::int64_t i = 0; i < kImageWords<Element> && band.left + band.right > 0; ++i) {
    Element* const word = to + i * band.b_word;
    __builtin_memset(word, 0, sizeof(Element) * left);
    __builtin_memset(word + end, 0, sizeof(Element) * (band.right * band.b_pixel));
  }
}

/// The rows to copy in each block are the input's, followed by the gradient's.
template <class Element>
void rearrange(const Band<Element>& band, std::int64_t begin, std::int64_t end) {
  const auto& [view, part, operands] = band;
  const ConvolutionShape& s = view.shape;
  const std::int64_t in_row = s.in.width * s.in.pixel_size<Element>();
  const std::int64_t out_row = s.out.width * part.a_pixel;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t block = i / part.copied_rows;
    const std::int64_t row = i % part.copied_rows;
    if (row < part.in_rows) {
      const std::int64_t y = (part.block_begin + block) * s.in.height + part.in_begin + row;
      Element* const to = operands.scratch + part.b_begin + block * part.b_block + row * part.b_row;
      const auto copy = view.image_lanes ? &copy_row<Element> : &transpose_row<Element>;
      copy(s, part, operands.in + y * in_row, to);
    } else if constexpr (kDepth<Element> == 2) {  // splits pairs of channels
      const std::int64_t y = row - part.in_rows;
      const Element* from =
          operands.gradient +
          ((part.block_begin + block) * s.out.height + part.row_begin + y) * out_row;
      Element* to = operands.scratch + block * part.a_block + y * out_row;
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

// Sums of products over bands, in AMX or AVX-512 registers.

/// A tile of sums: outputs and columns of a kernel row, with the rows and pixels to sum over.
template <class Element>
struct GradientTile {
  const Band<Element>& band;
  const Element* a;             // at the first output and pixel
  const Element* b;             // at the first column and pixel
  std::int64_t ky, row_offset;  // input row of output row 0
  ValidRange rows;              // among the band's output rows
  std::int64_t pixels;
  std::int64_t row, column;  // in the sums of the kernel row

  std::int64_t sums_step() const { return band.view.columns; }
  float* sums() const {
    return band.view.row_sums(band.operands.sums, ky) + row * sums_step() + column;
  }
  /// Writes `height` rows of `count` sums to the weight gradient.
  void write(const float* sums, std::int64_t height, std::int64_t count) const {
    const WeightGradientView& view = band.view;
    const std::int64_t channels = view.shape.in.channels;
    const std::int64_t output_size = view.shape.kernel.height * view.shape.kernel.width * channels;
    const std::int64_t valid_rows = smaller(height, view.shape.out.channels - row);
    std::int64_t kx = column / view.column_stride;
    std::int64_t channel = column % view.column_stride;
    for (std::int64_t i = 0; i < count && kx < view.shape.kernel.width; ++kx, channel = 0) {
      const std::int64_t run = smaller(count - i, view.column_stride - channel);
      Element* const to = band.operands.weight_gradient + row * output_size +
                          (ky * view.shape.kernel.width + kx) * channels + channel;
      const std::int64_t valid = smaller(run, channels - channel);
      for (std::int64_t c = 0; c < valid; c += kLanes) {
        const __mmask16 mask = first_lanes(valid - c);
        for (std::int64_t m = 0; m < valid_rows; ++m) {
          Element* const dest = to + m * output_size + c;
          store_rounded(dest, mask, _mm512_loadu_ps(sums + m * count + i + c));
          __builtin_prefetch(dest + 2 * kLanes, 1);  // for the next tile
        }
      }
      i += run;
    }
  }
};

/// Numbers of image words to sum over, excluding words that contain only padding images.
struct PixelWords {
  std::int64_t others;  // for each pixel but the last
  std::int64_t last;    // for the last pixel
};

/// AMX sums of A x 16 outputs and B x 16 columns. They remain in registers for a whole band.
template <class Element, int A, int B>
class AmxGradient {
 public:
  explicit AmxGradient(const GradientTile<Element>& tile) : tile_(tile) {
    if (tile.band.part.overwrites) {
      Sums::set_to_zero();
    } else {
      Sums::load_sums(tile.sums(), tile.sums_step());
    }
  }
  /// Adds the products of `count` pixels.
  void add(const Element* a, std::int64_t a_step, const Element* b, std::int64_t b_step,
           std::int64_t b_word, std::int64_t count, PixelWords /*words*/) {
    for (; count > 0; --count, a += a_step, b += b_step) {
      Sums::add(a, a + kLanes * kImages, sizeof(Element) * kImages, b, sizeof(Element) * b_word);
    }
  }
  void finish() {
    if (!tile_.band.part.writes) return Sums::store_sums(tile_.sums(), tile_.sums_step());
    alignas(64) float sums[A * kLanes * B * kLanes];
    Sums::store_sums(sums, B * kLanes);
    tile_.write(sums, A * kLanes, B * kLanes);
  }

 private:
  using Sums = amx::Sums<A, B>;

  const GradientTile<Element>& tile_;
};

/// Sums of M outputs and V vectors of columns. Registers accumulate only a few pixels, because
/// rounding errors grow with the number of consecutive additions.
template <class Element, int M, int V>
class RegisterGradient {
 public:
  explicit RegisterGradient(const GradientTile<Element>& tile) : tile_(tile) {}
  /// Adds the products of `count` pixels. Inlining would make GCC 12 spill sums in the inner loop.
  [[gnu::noinline]] void add(const Element* a, std::int64_t a_step, const Element* b,
                             std::int64_t b_step, std::int64_t b_word, std::int64_t count,
                             PixelWords words) {
    while (count > 0) {
      RegisterSums<M, V> sums;
      sums.set_to_zero();
      for (std::int64_t i = smaller(count, kPixels); i > 0; --i, a += a_step, b += b_step) {
        const bool is_last = i == 1 && count <= kPixels;
        sums.add(Factors<Element>{a, kImages, kDepth<Element>, b, b_word},
                 is_last ? words.last : words.others);
      }
      add(sums);
      count -= kPixels;
    }
  }
  void finish() {
    float* const total = tile_.sums();
    if (is_empty_) {
      RegisterSums<M, V> sums;
      sums.set_to_zero();
      sums.store(band_sums_, kWidth);
    }
    if (!tile_.band.part.overwrites) {
      RegisterSums<M, V> sums;
      sums.load(total, tile_.sums_step());
      add(sums);
    }
    if (tile_.band.part.writes) return tile_.write(band_sums_, M, kWidth);
    RegisterSums<M, V> sums;
    sums.load(band_sums_, kWidth);
    sums.store(total, tile_.sums_step());
  }

 private:
  static constexpr std::int64_t kPixels = 8;
  static constexpr std::int64_t kWidth = V * kLanes;

  [[gnu::always_inline]] void add(RegisterSums<M, V>& sums) {
    sums.store_total(band_sums_, kWidth, is_empty_);
    is_empty_ = false;
  }

  const GradientTile<Element>& tile_;
  bool is_empty_ = true;  // no sums yet
  alignas(64) float band_sums_[M * kWidth];
};

/// Sums of 4 outputs and up to 16 columns in vectors of images. Registers accumulate a pixel row.
class ImageGradient {
 public:
  explicit ImageGradient(const GradientTile<float>& tile) : tile_(tile) {}

  /// Adds the products of `count` pixels.
  void add(const float* a, std::int64_t a_step, const float* b, std::int64_t b_step,
           std::int64_t /*b_word*/, std::int64_t count, PixelWords /*words*/) {
    const WeightGradientView& view = tile_.band.view;
    const std::int64_t columns = view.shape.kernel.width * view.column_stride;
    for (std::int64_t column = 0; column < columns; column += kMax) {
      with_constant<1, 1, kMax>(smaller(kMax, columns - column), [&]<int Columns>() {
        add_columns<Columns>(a, a_step, b + column * kImages, b_step, count, column);
      });
    }
  }
  void finish() {
    const GradientBand& part = tile_.band.part;
    alignas(64) float sums[kRows * kLanes];
    for (std::int64_t m = 0; m < kRows; ++m) {
      Block columns;
      for (std::int64_t i = 0; i < kLanes; ++i) columns[i] = _mm512_castps_si512(band_sums_[m][i]);
      transpose(columns);
      __m512 sum = _mm512_setzero_ps();
      for (const __m512i& image : columns) sum = sum + _mm512_castsi512_ps(image);
      float* const total = tile_.sums() + m * tile_.sums_step();
      if (!part.overwrites) sum = sum + _mm512_loadu_ps(total);
      _mm512_storeu_ps(part.writes ? sums + m * kLanes : total, sum);
    }
    if (part.writes) tile_.write(sums, kRows, kLanes);
  }

 private:
  static constexpr std::int64_t kRows = kImageGradientRows;
  static constexpr int kMax = 6;  // columns at once

  template <int Columns>
  void add_columns(const float* a, std::int64_t a_step, const float* b, std::int64_t b_step,
                   std::int64_t count, std::int64_t column) {
    __m512 sums[kRows][Columns] = {};
    for (; count > 0; --count, a += a_step, b += b_step) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        __m512 b_columns[Columns];
#pragma GCC unroll 6
        for (int c = 0; c < Columns; ++c) {
          b_columns[c] = _mm512_loadu_ps(b + c * kImages + v * kLanes);
        }
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) {
          const __m512 a_row = _mm512_loadu_ps(a + m * kImages + v * kLanes);
#pragma GCC unroll 6
          for (int c = 0; c < Columns; ++c) {
            sums[m][c] = _mm512_fmadd_ps(a_row, b_columns[c], sums[m][c]);
          }
        }
      }
    }
    for (int m = 0; m < kRows; ++m) {
      for (int c = 0; c < Columns; ++c) {
        band_sums_[m][column + c] = band_sums_[m][column + c] + sums[m][c];
      }
    }
  }

  const GradientTile<float>& tile_;
  __m512 band_sums_[kRows][kLanes] = {};
};

/// Adds the products of a band to a tile.
template <class Gradient, class Element>
[[gnu::noinline]] void add_tile(const GradientTile<Element>& tile) {
  const GradientBand& band = tile.band.part;
  const ConvolutionShape& s = tile.band.view.shape;
  Gradient gradient(tile);
  constexpr std::int64_t kAllWords = kImageWords<Element>;
  const std::int64_t last_words =
      ceil_divide(samples(tile.band.operands, band.block_end - 1), kDepth<Element>);
  if (s.out.pixels() == 1 && tile.pixels == 1) {  // blocks are like pixels
    gradient.add(tile.a, band.a_block, tile.b + (tile.row_offset - band.in_begin) * band.b_row,
                 band.b_block, band.b_word, tile.rows.end > tile.rows.begin ? band.blocks() : 0,
                 {kAllWords, last_words});
    return gradient.finish();
  }
  for (std::int64_t block = 0; block < band.blocks(); ++block) {
    const std::int64_t words = block + 1 == band.blocks() ? last_words : kAllWords;
    for (std::int64_t y = tile.rows.begin; y < tile.rows.end; ++y) {
      gradient.add(
          tile.a + block * band.a_block + (y - band.row_begin) * s.out.width * band.a_pixel,
          band.a_pixel,
          tile.b + block * band.b_block +
              (y * s.stride.height + tile.row_offset - band.in_begin) * band.b_row,
          s.stride.width * band.b_pixel, band.b_word, tile.pixels, {words, words});
    }
  }
  gradient.finish();
}

/// Computes one to three vectors of columns with the kind of registers that the view specifies.
template <class Element>
void dispatch_tile(const GradientTile<Element>& tile, std::int64_t vectors) {
  const WeightGradientView& view = tile.band.view;
  if constexpr (kDepth<Element> == 1) {
    if (view.image_lanes) return add_tile<ImageGradient>(tile);
  } else if (view.uses_amx) {
    return with_constant<1, 1, 2>(view.rows - tile.row > kLanes ? 2 : 1, [&]<int A>() {
      with_constant<1, 1, 2>(vectors, [&]<int B>() { add_tile<AmxGradient<Element, A, B>>(tile); });
    });
  }
  with_constant<1, 1, 3>(vectors, [&]<int V>() {
    with_constant<kDepth<Element>, kDepth<Element>, max_panel_rows(V)>(
        view.panel_rows, [&]<int M>() { add_tile<RegisterGradient<Element, M, V>>(tile); });
  });
}

/// Computes `rows` rows of tiles of one kernel row.
template <class Element>
void add_tile_rows(const GradientTile<Element>& first, std::int64_t rows) {
  const WeightGradientView& view = first.band.view;
  const GradientBand& band = first.band.part;
  const ConvolutionShape& s = view.shape;
  const std::int64_t steps = view.merges_columns ? 1 : s.kernel.width;
  for (std::int64_t kx = 0; kx < steps; ++kx) {
    GradientTile<Element> row_tile = first;
    std::int64_t columns = view.columns;
    if (!view.merges_columns) {
      const std::int64_t offset = kx - s.padding.width;
      const ValidRange pixels(0, s.out.width, offset, s.stride.width, s.in.width);
      row_tile.a += pixels.begin * band.a_pixel;
      row_tile.b += (pixels.begin * s.stride.width + offset) * band.b_pixel;
      row_tile.pixels = pixels.end - pixels.begin;
      row_tile.column = kx * view.column_stride;
      columns = view.column_stride;
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      GradientTile<Element> tile = row_tile;
      for (std::int64_t left = columns / kLanes; left > 0; left -= view.tile_vectors) {
        dispatch_tile(tile, smaller(left, view.tile_vectors));
        tile.b += view.tile_vectors * kLanes * kDepth<Element>;
        tile.column += view.tile_vectors * kLanes;
      }
      row_tile.row += view.rows_per_tile();
      row_tile.a += view.rows_per_tile() * kImages;
    }
  }
}

template <class Element>
void add_kernel_rows(const Band<Element>& band, std::int64_t begin, std::int64_t end) {
  const WeightGradientView& view = band.view;
  const ConvolutionShape& s = view.shape;
  const GradientBand& part = band.part;
  const Element* const a = kDepth<Element> == 2 || part.tile_side > 0
                               ? band.operands.scratch + part.a_begin  // copied or transformed
                               : band.operands.gradient + part.block_begin * part.a_block +
                                     part.row_begin * s.out.width * part.a_pixel;
  const Element* const b = band.operands.scratch + part.b_begin;
  while (begin < end) {
    const std::int64_t ky = begin / view.tile_rows_per_kernel_row();
    const std::int64_t first = begin % view.tile_rows_per_kernel_row();
    const std::int64_t rows = smaller(end - begin, view.tile_rows_per_kernel_row() - first);
    const std::int64_t row = first * view.rows_per_tile();
    const bool is_position = part.tile_side > 0;  // of Winograd's algorithm, not a kernel row
    const std::int64_t offset = is_position ? 0 : ky - s.padding.height;
    ValidRange valid(part.row_begin, part.row_end, offset, s.stride.height, s.in.height);
    std::int64_t pixels = s.out.width;
    if (is_position) {
      valid.end = tiles_with_position(part.outputs.height, ky / part.tile_side, part.tile_side);
      pixels = tiles_with_position(part.outputs.width, ky % part.tile_side, part.tile_side);
    }
    add_tile_rows<Element>({band, a + ky * part.a_position + row * kImages,
                            b + ky * part.b_position, ky, offset, valid, pixels, row, 0},
                           rows);
    begin += rows;
  }
}

template <class Element>
void add_products(const Band<Element>& band, std::int64_t begin, std::int64_t end) {
  if (!band.view.uses_amx) return add_kernel_rows(band, begin, end);
  const amx::Registers registers;
  add_kernel_rows(band, begin, end);
}

}  // namespace mnist_train::cpu_kernels::avx512
