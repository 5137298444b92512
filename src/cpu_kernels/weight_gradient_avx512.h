#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/amx.h"
#include "cpu_kernels/band_layout_avx512.h"
#include "cpu_kernels/register_sums_avx512.h"

/// Sums of the products of bands, see band_layout_avx512.h, in registers of AMX or AVX-512.
namespace mnist_train::cpu_kernels::avx512 {

/// Rounds up to 16 columns of rows of sums, with steps between rows in elements.
template <class Element>
void round_rows(const float* sums, std::int64_t sums_step, std::int64_t rows, std::int64_t columns,
                Element* to, std::int64_t step) {
  const __mmask16 mask = first_lanes(columns);
  for (; rows > 0; --rows, sums += sums_step, to += step) {
    store_rounded(to, mask, _mm512_loadu_ps(sums));
    __builtin_prefetch(to + 2 * kLanes, 1);  // of the next tile
  }
}

/// Outputs and columns of a kernel row, and the pixels of an output row whose products they sum.
template <class Element>
struct GradientTile {
  const Element* a;  // of the first output and pixel
  const Element* b;  // of the first column and pixel
  std::int64_t group, ky;
  ValidRange rows;  // of the band's output rows
  std::int64_t pixels;
  std::int64_t row, column;  // of the sums of the group and kernel row

  float* sums(const WeightGradientView& view, const GradientTarget<Element>& target) const {
    return view.sums_of(target.sums, group, ky) + row * view.columns + column;
  }
  /// Writes `height` rows of `count` sums to the gradient of the weights.
  void write(const WeightGradientView& view, const GradientTarget<Element>& target,
             const float* sums, std::int64_t height, std::int64_t count) const {
    const std::int64_t in = view.shape.group_in();
    const std::int64_t out = group * view.shape.group_out() + row;
    const std::int64_t valid_rows = smaller(height, view.shape.group_out() - row);
    const WeightStrides& strides = target.strides;
    std::int64_t kx = column / view.column_run;
    std::int64_t channel = column % view.column_run;
    for (std::int64_t i = 0; i < count && kx < view.shape.kernel.width; ++kx, channel = 0) {
      const std::int64_t here = smaller(count - i, view.column_run - channel);
      Element* const to = target.weights + out * strides.out + ky * strides.kernel_row +
                          kx * strides.kernel_column + channel;
      const std::int64_t valid = smaller(here, in - channel);
      for (std::int64_t c = 0; c < valid; c += kLanes) {
        round_rows(sums + i + c, count, valid_rows, valid - c, to + c, strides.out);
      }
      i += here;
    }
  }
};

#ifdef __AVX512BF16__
/// Sums of A x 16 outputs and B x 16 columns by AMX. They stay in registers for a band.
template <int A, int B>
class AmxGradient {
 public:
  AmxGradient(const WeightGradientView& view, const GradientTile<Bf16Bits>& tile,
              const GradientTarget<Bf16Bits>& target)
      : view_(view), tile_(tile), target_(target) {
    if (target.is_first) {
      Sums::set_to_zero();
    } else {
      Sums::load_sums(tile.sums(view, target), view.columns);
    }
  }
  /// Adds the products of `count` pixels.
  void add(const Bf16Bits* a, std::int64_t a_step, const Bf16Bits* b, std::int64_t b_step,
           std::int64_t b_word, std::int64_t count) {
    for (; count > 0; --count, a += a_step, b += b_step) {
      Sums::add(a, a + kLanes * kImages, sizeof(Bf16Bits) * kImages, b, sizeof(Bf16Bits) * b_word);
    }
  }
  void finish() {
    if (target_.weights == nullptr) {
      Sums::store_sums(tile_.sums(view_, target_), view_.columns);
      return;
    }
    alignas(64) float sums[A * kLanes * B * kLanes];
    Sums::store_sums(sums, B * kLanes);
    tile_.write(view_, target_, sums, A * kLanes, B * kLanes);
  }

 private:
  using Sums = amx::Sums<A, B>;

  const WeightGradientView& view_;
  const GradientTile<Bf16Bits>& tile_;
  const GradientTarget<Bf16Bits>& target_;
};

#endif

/// Sums of M outputs and V vectors of columns. Registers sum over few pixels, since errors grow
/// with the number of sums on top of each other.
template <class Element, int M, int V>
class RegisterGradient {
 public:
  RegisterGradient(const WeightGradientView& view, const GradientTile<Element>& tile,
                   const GradientTarget<Element>& target)
      : view_(view), tile_(tile), target_(target) {}
  /// Adds the products of `count` pixels.
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
  void finish() {
    float* const total = tile_.sums(view_, target_);
    if (target_.weights != nullptr) {
      if (!target_.is_first) add_rows(total, view_.columns, of_band_, kWidth);
      tile_.write(view_, target_, of_band_, M, kWidth);
    } else if (target_.is_first) {
      RegisterSums<M, V> sums;
      sums.load(of_band_, kWidth);
      sums.store(total, view_.columns);
    } else {
      add_rows(of_band_, kWidth, total, view_.columns);
    }
  }

 private:
  static constexpr std::int64_t kPixels = 8;
  static constexpr std::int64_t kWidth = V * kLanes;

  static void add_rows(const float* from, std::int64_t from_step, float* to, std::int64_t step) {
    RegisterSums<M, V> sums;
    sums.load(from, from_step);
    add(sums, to, step);
  }
  static void add(RegisterSums<M, V>& sums, float* to, std::int64_t step) {
    sums.for_each([&](int m, int v, __m512& sum) {
      float* const at = to + m * step + v * kLanes;
      _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), sum));
    });
  }

  const WeightGradientView& view_;
  const GradientTile<Element>& tile_;
  const GradientTarget<Element>& target_;
  alignas(64) float of_band_[M * kWidth] = {};
};

/// Sums of 4 outputs and up to 16 columns in vectors of images. Registers sum over a row of pixels.
class ImageGradient {
 public:
  ImageGradient(const WeightGradientView& view, const GradientTile<float>& tile,
                const GradientTarget<float>& target)
      : view_(view),
        tile_(tile),
        target_(target),
        columns_(view.shape.kernel.width * view.column_run) {}

  /// Adds the products of `count` pixels.
  void add(const float* a, std::int64_t a_step, const float* b, std::int64_t b_step,
           std::int64_t /*b_word*/, std::int64_t count) {
    for (std::int64_t column = 0; column < columns_; column += kMost) {
      constexpr decltype(&ImageGradient::add_columns<1>) kByCount[] = {
          &ImageGradient::add_columns<1>, &ImageGradient::add_columns<2>,
          &ImageGradient::add_columns<3>, &ImageGradient::add_columns<4>,
          &ImageGradient::add_columns<5>, &ImageGradient::add_columns<6>};
      const auto add = kByCount[smaller(kMost, columns_ - column) - 1];
      (this->*add)(a, a_step, b + column * kImages, b_step, count, column);
    }
  }
  void finish() {
    alignas(64) float sums[kRows * kLanes];
    for (std::int64_t m = 0; m < kRows; ++m) {
      Block columns;
      for (std::int64_t i = 0; i < kLanes; ++i) columns[i] = _mm512_castps_si512(of_band_[m][i]);
      transpose(columns);
      __m512 sum = _mm512_setzero_ps();
      for (const __m512i& image : columns) sum = _mm512_add_ps(sum, _mm512_castsi512_ps(image));
      float* const total = tile_.sums(view_, target_) + m * view_.columns;
      if (!target_.is_first) sum = _mm512_add_ps(sum, _mm512_loadu_ps(total));
      _mm512_storeu_ps(target_.weights == nullptr ? total : sums + m * kLanes, sum);
    }
    if (target_.weights != nullptr) tile_.write(view_, target_, sums, kRows, kLanes);
  }

 private:
  static constexpr std::int64_t kRows = kImageGradientRows;
  static constexpr std::int64_t kMost = 6;  // columns at once

  template <int Columns>
  void add_columns(const float* a, std::int64_t a_step, const float* b, std::int64_t b_step,
                   std::int64_t count, std::int64_t column) {
    __m512 sums[kRows][Columns] = {};
    for (; count > 0; --count, a += a_step, b += b_step) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        __m512 of_column[Columns];
#pragma GCC unroll 6
        for (int c = 0; c < Columns; ++c) {
          of_column[c] = _mm512_loadu_ps(b + c * kImages + v * kLanes);
        }
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) {
          const __m512 of_row = _mm512_loadu_ps(a + m * kImages + v * kLanes);
#pragma GCC unroll 6
          for (int c = 0; c < Columns; ++c) {
            sums[m][c] = _mm512_fmadd_ps(of_row, of_column[c], sums[m][c]);
          }
        }
      }
    }
    for (int m = 0; m < kRows; ++m) {
      for (int c = 0; c < Columns; ++c) {
        of_band_[m][column + c] = _mm512_add_ps(of_band_[m][column + c], sums[m][c]);
      }
    }
  }

  const WeightGradientView& view_;
  const GradientTile<float>& tile_;
  const GradientTarget<float>& target_;
  std::int64_t columns_;
  __m512 of_band_[kRows][kLanes] = {};
};

/// Adds the products of a band.
template <class Element, class Gradient>
void add_tile(const WeightGradientView& view, const GradientBand& band,
              const BandLayout<Element>& layout, const GradientTile<Element>& tile,
              const GradientTarget<Element>& target) {
  const ConvolutionShape& s = view.shape;
  const std::int64_t row_offset = tile.ky * s.dilation.height - s.padding.height;
  const std::int64_t b_step = s.stride.width * layout.b_pixel;
  Gradient gradient(view, tile, target);
  for (std::int64_t block = 0; block < band.block_end - band.block_begin; ++block) {
    for (std::int64_t y = tile.rows.begin; y < tile.rows.end; ++y) {
      gradient.add(
          tile.a + block * layout.a_block + (y - band.row_begin) * s.out.width * layout.a_pixel,
          layout.a_pixel,
          tile.b + block * layout.b_block +
              (y * s.stride.height + row_offset - layout.rows.begin) * layout.b_row,
          b_step, layout.b_word, tile.pixels);
    }
  }
  gradient.finish();
}

template <class Element>
using AddTile = void (*)(const WeightGradientView&, const GradientBand&, const BandLayout<Element>&,
                         const GradientTile<Element>&, const GradientTarget<Element>&);

/// Returns the function for tiles of `rows` outputs and one or two vectors of columns.
template <class Element>
AddTile<Element> add_tile_of(std::int64_t rows, bool two_vectors) {
  static constexpr auto kFunction = []<int M, int V>() {
    return &add_tile<Element, RegisterGradient<Element, M, V>>;
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
#ifdef __AVX512BF16__
inline AddTile<Bf16Bits> add_amx_tile_of(bool two_panels, bool two_vectors) {
  if (two_panels) {
    return two_vectors ? &add_tile<Bf16Bits, AmxGradient<2, 2>>
                       : &add_tile<Bf16Bits, AmxGradient<2, 1>>;
  }
  return two_vectors ? &add_tile<Bf16Bits, AmxGradient<1, 2>>
                     : &add_tile<Bf16Bits, AmxGradient<1, 1>>;
}

#endif

template <class Element>
AddTile<Element> choose_add_tile(const WeightGradientView& view, [[maybe_unused]] std::int64_t row,
                                 bool two_vectors) {
#ifdef __AVX512BF16__
  if constexpr (kDepth<Element> == 2) {
    if (view.by_amx) return add_amx_tile_of(view.rows - row > kLanes, two_vectors);
  }
#endif
  if constexpr (kDepth<Element> == 1) {
    if (view.by_images) return &add_tile<float, ImageGradient>;
  }
  return add_tile_of<Element>(view.panel_rows, two_vectors);
}

/// Computes a row of tiles, of which `tile` is the first, for columns that are adjacent in memory.
template <class Element>
void add_columns(const WeightGradientView& view, const GradientBand& band,
                 const BandLayout<Element>& layout, GradientTile<Element> tile,
                 std::int64_t columns, const GradientTarget<Element>& target) {
  while (columns > 0) {
    choose_add_tile<Element>(view, tile.row, columns > kLanes)(view, band, layout, tile, target);
    tile.b += 2 * kLanes * kDepth<Element>;
    tile.column += 2 * kLanes;
    columns -= 2 * kLanes;
  }
}

/// Computes `rows` rows of tiles of one group and kernel row.
template <class Element>
void add_tile_rows(const WeightGradientView& view, const GradientBand& band,
                   const BandLayout<Element>& layout, const GradientTile<Element>& first,
                   std::int64_t rows, const GradientTarget<Element>& target) {
  const ConvolutionShape& s = view.shape;
  const std::int64_t steps = view.merges_columns ? 1 : s.kernel.width;
  for (std::int64_t kx = 0; kx < steps; ++kx) {
    GradientTile<Element> tile = first;
    std::int64_t columns = view.columns;
    if (!view.merges_columns) {
      const std::int64_t offset = kx * s.dilation.width - s.padding.width;
      const ValidRange pixels(0, s.out.width, offset, s.stride.width, s.in.width);
      tile.a += pixels.begin * layout.a_pixel;
      tile.b += (pixels.begin * s.stride.width + offset) * layout.b_pixel;
      tile.pixels = pixels.end - pixels.begin;
      tile.column = kx * view.column_run;
      columns = view.column_run;
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      add_columns(view, band, layout, tile, columns, target);
      tile.row += view.tile_rows();
      tile.a += view.tile_rows() * kImages;
    }
  }
}

/// Returns the first factor of a band: for bf16, in scratch memory.
inline const float* first_factor(const WeightGradientView& view, const GradientBand& band,
                                 const BandLayout<float>& layout,
                                 const GradientFactors<float>& factors) {
  return factors.gradient + band.block_begin * layout.a_block +
         band.row_begin * view.shape.out.width * layout.a_pixel;
}
inline const Bf16Bits* first_factor(const WeightGradientView&, const GradientBand&,
                                    const BandLayout<Bf16Bits>&,
                                    const GradientFactors<Bf16Bits>& factors) {
  return factors.scratch;
}

template <class Element>
void add_groups(const WeightGradientView& view, const GradientBand& band,
                const GradientFactors<Element>& factors, const GradientTarget<Element>& target,
                std::int64_t begin, std::int64_t end) {
  const ConvolutionShape& s = view.shape;
  const BandLayout<Element> layout(view, band);
  const Element* const a = first_factor(view, band, layout, factors);
  const Element* const b = factors.scratch + layout.b_begin;
  while (begin < end) {
    const std::int64_t index = begin / view.tiles_of_group();  // of the group and kernel row
    const std::int64_t first = begin - index * view.tiles_of_group();
    const std::int64_t rows = smaller(end - begin, view.tiles_of_group() - first);
    const std::int64_t row = first * view.tile_rows();
    const std::int64_t ky = index % s.kernel.height;
    const std::int64_t group = index / s.kernel.height;
    const ValidRange valid(band.row_begin, band.row_end, ky * s.dilation.height - s.padding.height,
                           s.stride.height, s.in.height);
    add_tile_rows(
        view, band, layout,
        {a + (group * s.group_out() + row) * kImages, b + group * s.group_in() * kDepth<Element>,
         group, ky, valid, s.out.width, row, 0},
        rows, target);
    begin += rows;
  }
}

template <class Element>
void add_products(const WeightGradientView& view, const GradientBand& band,
                  const GradientFactors<Element>& factors, const GradientTarget<Element>& target,
                  std::int64_t begin, std::int64_t end) {
  if (!view.by_amx) return add_groups(view, band, factors, target, begin, end);
  const amx::Registers registers;
  add_groups(view, band, factors, target, begin, end);
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

inline void copy_gradient_row(const float*, std::int64_t, float*) {}
#ifdef __AVX512BF16__
inline void copy_gradient_row(const Bf16Bits* from, std::int64_t size, Bf16Bits* to) {
  split_pairs(from, size / kWordSize<Bf16Bits>, to);
}
#endif

/// Rows are those of the input, then those of the gradient, of each block.
template <class Element>
void rearrange(const WeightGradientView& view, const GradientBand& band,
               const GradientFactors<Element>& factors, std::int64_t begin, std::int64_t end) {
  const ConvolutionShape& s = view.shape;
  const BandLayout<Element> layout(view, band);
  const std::int64_t of_block =
      gradient_rows<Element>(view, band) / (band.block_end - band.block_begin);
  const std::int64_t in_row = s.in.block_size<Element>() / s.in.height;
  const std::int64_t out_row = s.out.width * layout.a_pixel;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t block = i / of_block;
    const std::int64_t row = i % of_block;
    if (row < layout.rows.count()) {
      const auto copy = view.by_images ? &copy_row<Element> : &transpose_row<Element>;
      copy(s, layout,
           factors.in +
               ((band.block_begin + block) * s.in.height + layout.rows.begin + row) * in_row,
           factors.scratch + layout.b_begin + block * layout.b_block + row * layout.b_row);
    } else {
      const std::int64_t y = row - layout.rows.count();
      copy_gradient_row(
          factors.gradient +
              ((band.block_begin + block) * s.out.height + band.row_begin + y) * out_row,
          out_row, factors.scratch + block * layout.a_block + y * out_row);
    }
  }
}

/// Rounds a row of sums to weights whose taps are adjacent in memory.
template <class Element>
void write_adjacent_taps(const WeightGradientView& view, const WeightStrides& strides,
                         std::int64_t in, const float* const* of_tap, Element* weights) {
  const std::int64_t taps = view.shape.kernel.height * view.shape.kernel.width;
  for (std::int64_t c = 0; c < in; c += kLanes) {
    const std::int64_t channels = smaller(kLanes, in - c);
    for (std::int64_t tap = 0; tap < taps; tap += kLanes) {
      const std::int64_t count = smaller(kLanes, taps - tap);
      Block block;
      for (std::int64_t i = 0; i < kLanes; ++i) {
        block[i] = i < count ? _mm512_maskz_loadu_epi32(first_lanes(channels), of_tap[tap + i] + c)
                             : _mm512_setzero_si512();
      }
      transpose(block);
      for (std::int64_t i = 0; i < channels; ++i) {
        store_rounded(weights + (c + i) * strides.in + tap, first_lanes(count),
                      _mm512_castsi512_ps(block[i]));
      }
    }
  }
}

/// Rounds a row of sums of one tap.
template <class Element>
void write_tap(const float* sums, std::int64_t in, std::int64_t step, Element* weights) {
  for (std::int64_t c = 0; c < in; c += kLanes) {
    const __mmask16 mask = first_lanes(in - c);
    const __m512 of_channels = _mm512_maskz_loadu_ps(mask, sums + c);
    if (step == 1) {
      store_rounded(weights + c, mask, of_channels);
      continue;
    }
    Element rounded[kLanes];
    store_rounded(rounded, first_lanes(kLanes), of_channels);
    for (std::int64_t i = 0; i < smaller(kLanes, in - c); ++i) weights[(c + i) * step] = rounded[i];
  }
}

template <class Element>
void write_gradient(const WeightGradientView& view, const float* sums, const WeightStrides& strides,
                    std::int64_t begin, std::int64_t end, Element* weights) {
  const ConvolutionShape& s = view.shape;
  const std::int64_t in = s.in.channels / view.layer_groups;
  const std::int64_t taps = s.kernel.height * s.kernel.width;
  constexpr std::int64_t kAdjacentTaps = 128;
  const float* of_tap[kAdjacentTaps];
  const bool adjacent = strides.in != 1 && strides.kernel_column == 1 &&
                        strides.kernel_row == s.kernel.width && taps <= kAdjacentTaps;
  for (std::int64_t o = begin; o < end; ++o) {
    const std::int64_t first_in = o / (s.out.channels / view.layer_groups) * in;
    const float* const row = sums + o / s.group_out() * s.kernel.height * view.rows * view.columns +
                             o % s.group_out() * view.columns + first_in % s.group_in();
    Element* const to = weights + o * strides.out;
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const std::int64_t ky = tap / s.kernel.width;
      const std::int64_t kx = tap % s.kernel.width;
      const float* const from = row + ky * view.rows * view.columns + kx * view.column_run;
      if (adjacent) {
        of_tap[tap] = from;
      } else {
        write_tap(from, in, strides.in, to + ky * strides.kernel_row + kx * strides.kernel_column);
      }
    }
    if (adjacent) write_adjacent_taps(view, strides, in, of_tap, to);
  }
}

}  // namespace mnist_train::cpu_kernels::avx512
