#pragma once

// Only for sources compiled with AVX-512; see lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"

/// Winograd's F(2x2, 3x3) algorithm (Lavin and Gray, https://arxiv.org/abs/1509.09308) for 3x3
/// convolutions with stride 1 in fp32. It needs 16 products instead of 36 for a tile of 2x2
/// outputs. Weights, inputs and sums are transformed along both axes.
namespace mnist_train::cpu_kernels::avx512 {

inline constexpr std::int64_t kTileRows = 4;  // rows and columns of a transformed tile

/// Transforms the weights of three taps along an axis into four positions, `step` vectors apart.
inline void transform_weights(const __m512 (&taps)[3], __m512* to, std::int64_t step) {
  const __m512 half = _mm512_set1_ps(0.5F);
  const __m512 outer = (taps[0] + taps[2]) * half;
  const __m512 middle = taps[1] * half;
  to[0] = taps[0];
  to[step] = outer + middle;
  to[2 * step] = outer - middle;
  to[3 * step] = taps[2];
}
/// Transforms 3x3 taps, each a block, into 4x4 positions, starting with the last tap if `reversed`.
inline void transform_weights(const Block* taps, std::int64_t channel, bool reversed, __m512* to) {
  const auto tap = [&](int i) { return _mm512_castsi512_ps(taps[reversed ? 8 - i : i][channel]); };
  __m512 rows[kTileRows * 3];
  for (int x = 0; x < 3; ++x) transform_weights({tap(x), tap(3 + x), tap(6 + x)}, rows + x, 3);
  for (std::int64_t y = 0; y < kTileRows; ++y) {
    transform_weights({rows[3 * y], rows[3 * y + 1], rows[3 * y + 2]}, to + kTileRows * y, 1);
  }
}

/// Transforms four inputs along an axis, in place.
[[gnu::always_inline]] inline void transform_inputs(__m512& a, __m512& b, __m512& c, __m512& d) {
  const __m512 first = a - c;
  const __m512 third = c - b;
  d = b - d;
  b = b + c;
  a = first;
  c = third;
}

/// The 4x4 inputs of a tile, the first at (y, x). Some may be outside the image.
struct TileInputs {
  __mmask16 masks[kWinogradPositions];  // zero for inputs outside the image
  std::int64_t row, pixel;              // distances in floats

  TileInputs(const ValueShape& in, std::int64_t y, std::int64_t x, std::int64_t row_step,
             std::int64_t pixel_step)
      : row(row_step), pixel(pixel_step) {
    for (std::int64_t i = 0; i < kWinogradPositions; ++i) {
      const std::int64_t in_y = y + i / kTileRows;
      const std::int64_t in_x = x + i % kTileRows;
      const bool is_inside = in_y >= 0 && in_y < in.height && in_x >= 0 && in_x < in.width;
      masks[i] = is_inside ? 0xffff : 0;
    }
  }
  /// Transforms one vector per input, the first at `from`, into positions `step` floats apart.
  template <bool IsInside>
  [[gnu::always_inline]] void transform(const float* from, float* to, std::int64_t step) const {
    constexpr int kSide = kTileRows;
    __m512 d[kSide][kSide];
#pragma GCC unroll 4
    for (int r = 0; r < kSide; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kSide; ++c) {
        const float* const p = from + r * row + c * pixel;
        d[r][c] = IsInside ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(masks[r * kSide + c], p);
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < kSide; ++c) transform_inputs(d[0][c], d[1][c], d[2][c], d[3][c]);
#pragma GCC unroll 4
    for (int r = 0; r < kSide; ++r) {
      transform_inputs(d[r][0], d[r][1], d[r][2], d[r][3]);
#pragma GCC unroll 4
      for (int c = 0; c < kSide; ++c) _mm512_storeu_ps(to + (r * kSide + c) * step, d[r][c]);
    }
  }
};

/// Transforms the inputs of the tile at output (y, x) of a block into [position][channel][image].
template <bool IsInside>
[[gnu::noinline]] void transform_tile(const GatherView& view, const float* block, std::int64_t y,
                                      std::int64_t x, float* to) {
  const std::int64_t pixel = view.in.channels * kImages;
  const std::int64_t row = view.in.width * pixel;
  y -= view.winograd.top;
  x -= view.winograd.left;
  const TileInputs inputs(view.in, y, x, row, pixel);
  const float* from = block + y * row + x * pixel;
  for (std::int64_t i = 0; i < kVectors * view.in.channels; ++i, from += kLanes, to += kLanes) {
    inputs.transform<IsInside>(from, to, view.winograd.position_size);
  }
}

/// Transforms sums [position][M rows][image] into the outputs of a tile, and stores the `height` x
/// `width` outputs that are inside the image.
template <int M>
void store_tile(const float* sums, const float* bias, std::int64_t rows,
                const Results<float>* results, int height, int width) {
  constexpr std::int64_t kStep = M * kImages;
  for (std::int64_t m = 0; m < rows; ++m) {
    const __m512 b = _mm512_set1_ps(bias[m]);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const float* const from = sums + m * kImages + v * kLanes;
      __m512 upper[kTileRows];
      __m512 lower[kTileRows];
#pragma GCC unroll 4
      for (int c = 0; c < kTileRows; ++c) {
        const float* const p = from + c * kStep;
        const __m512 second = _mm512_load_ps(p + 4 * kStep);
        const __m512 third = _mm512_load_ps(p + 8 * kStep);
        upper[c] = _mm512_load_ps(p) + second + third;
        lower[c] = second - third - _mm512_load_ps(p + 12 * kStep);
      }
      const auto store = [&](int pixel, const __m512(&row)[kTileRows]) {
        results[pixel].store(m, v, {{row[0] + row[1] + row[2] + b}});
        if (width > 1) results[pixel + 1].store(m, v, {{row[1] - row[2] - row[3] + b}});
      };
      store(0, upper);
      if (height > 1) store(2, lower);
    }
  }
}

/// Computes the outputs of `count` tiles, starting with tile `first`, for the panels of a part.
template <int M>
void multiply_tiles(const GatherView& view, const BatchOperands<float>& operands,
                    const float* panels, const GatherPart& part, std::int64_t first,
                    std::int64_t count) {
  const WinogradView& tiles = view.winograd;
  const std::int64_t tiles_per_row = ceil_divide(view.out.width, 2);
  const std::int64_t pixel = view.out.channels * kImages;
  alignas(64) float sums[kWinogradPositions * M * kImages];
  for (std::int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
    const float* const weights = panels + panel * view.positions * M;
    const std::int64_t channel = panel * M;
    const std::int64_t rows = smaller(M, view.out.channels - channel);
    float bias[M] = {};
    for (std::int64_t m = 0; m < rows && operands.bias != nullptr; ++m) {
      bias[m] = operands.bias[channel + m];
    }
    for (std::int64_t tile = 0; tile < count; ++tile) {
      for (std::int64_t position = 0; position < kWinogradPositions; ++position) {
        RegisterSums<M, kVectors> products;
        products.for_each([](int, int, __m512& sum) { sum = _mm512_setzero_ps(); });
        products.add(
            Factors<float>{weights + position * view.in.channels * M, 1, M,
                           part.scratch + tile * tiles.tile_size() + position * tiles.position_size,
                           kImages},
            view.in.channels);
        products.store(sums + position * M * kImages, kImages);
      }
      const std::int64_t y = part.row_begin + (first + tile) / tiles_per_row * 2;
      const std::int64_t x = (first + tile) % tiles_per_row * 2;
      const std::int64_t tile_offset =
          ((part.block * view.out.height + y) * view.out.width + x) * pixel + channel * kImages;
      Results<float> results[4];
      for (int i = 0; i < 4; ++i) {
        const std::int64_t offset = tile_offset + (i / 2 * view.out.width + i % 2) * pixel;
        results[i] = {operands.addend == nullptr ? nullptr : operands.addend + offset,
                      operands.relu, operands.out + offset, rows};
      }
      store_tile<M>(sums, bias, rows, results, y + 1 < part.row_end ? 2 : 1,
                    x + 1 < view.out.width ? 2 : 1);
    }
  }
}

inline void gather_winograd(const GatherView& view, const BatchOperands<float>& operands,
                            const float* panels, const GatherPart& part) {
  const WinogradView& tiles = view.winograd;
  const std::int64_t tiles_per_row = ceil_divide(view.out.width, 2);
  const std::int64_t count = ceil_divide(part.row_end - part.row_begin, 2) * tiles_per_row;
  const float* const block = operands.in + part.block * view.in.block_size<float>();
  for (std::int64_t first = 0; first < count; first += tiles.tiles_per_pass) {
    const std::int64_t pass_size = smaller(tiles.tiles_per_pass, count - first);
    for (std::int64_t i = 0; i < pass_size; ++i) {
      const std::int64_t y = part.row_begin + (first + i) / tiles_per_row * 2;
      const std::int64_t x = (first + i) % tiles_per_row * 2;
      const bool is_inside = y >= tiles.top && y - tiles.top + kTileRows <= view.in.height &&
                             x >= tiles.left && x - tiles.left + kTileRows <= view.in.width;
      const auto transform = is_inside ? &transform_tile<true> : &transform_tile<false>;
      transform(view, block, y, x, part.scratch + i * tiles.tile_size());
    }
    with_constant<1, 1, kMaxRows>(view.panel_rows, [&]<int M>() {
      multiply_tiles<M>(view, operands, panels, part, first, pass_size);
    });
  }
}

// Weight gradient.

/// Transforms the gradients of two outputs along an axis.
inline void transform_gradients(__m512 first, __m512 second, __m512* to, std::int64_t step) {
  to[0] = first;
  to[step] = first + second;
  to[2 * step] = first - second;
  to[3 * step] = _mm512_setzero_ps() - second;
}

/// Transforms the gradient of the tile at output (y, x) into [position][channel][image].
inline void transform_gradient_tile(const Band<float>& band, const GradientBand& tiles,
                                    std::int64_t y, std::int64_t x, float* to) {
  const ValueShape& out = band.view.shape.out;
  const std::int64_t pixel = out.pixel_size<float>();
  const float* from =
      band.operands.gradient + ((band.part.block_begin * out.height + y) * out.width + x) * pixel;
  const __mmask16 right_mask = x + 1 < out.width ? 0xffff : 0;
  const __mmask16 lower_mask = y + 1 < out.height ? 0xffff : 0;
  for (std::int64_t i = 0; i < kVectors * out.channels; ++i, from += kLanes, to += kLanes) {
    const float* const lower = from + out.width * pixel;
    __m512 rows[kTileRows * 2];
    transform_gradients(_mm512_loadu_ps(from), _mm512_maskz_loadu_ps(lower_mask, lower), rows, 2);
    transform_gradients(_mm512_maskz_loadu_ps(right_mask, from + pixel),
                        _mm512_maskz_loadu_ps(lower_mask & right_mask, lower + pixel), rows + 1, 2);
#pragma GCC unroll 4
    for (std::int64_t r = 0; r < kTileRows; ++r) {
      __m512 row[kTileRows];
      transform_gradients(rows[2 * r], rows[2 * r + 1], row, 1);
#pragma GCC unroll 4
      for (int c = 0; c < kTileRows; ++c) {
        _mm512_storeu_ps(to + (kTileRows * r + c) * tiles.a_position, row[c]);
      }
    }
  }
}

/// Transforms the rearranged inputs of the tile at output (y, x) into [position][image][channel].
inline void transform_input_tile(const Band<float>& band, const GradientBand& tiles, std::int64_t y,
                                 std::int64_t x, float* to) {
  const auto& [view, part, operands] = band;
  const ConvolutionShape& s = view.shape;
  y -= s.padding.height;
  x -= s.padding.width;
  const TileInputs inputs(s.in, y, x, part.b_row, part.b_pixel);
  const float* const from =
      operands.scratch + part.b_begin + (y - part.in_begin) * part.b_row + x * part.b_pixel;
  for (std::int64_t image = 0; image < kImages; ++image) {
    for (std::int64_t c = 0; c < s.in.channels; c += kLanes) {
      inputs.transform<false>(from + image * part.b_word + c, to + image * tiles.b_word + c,
                              tiles.b_position);
    }
  }
}

template <class Element>
void transform_tiles(const Band<Element>& band, const GradientBand& tiles, std::int64_t begin,
                     std::int64_t end) {
  if constexpr (kDepth<Element> == 1) {
    const std::int64_t tiles_per_row = ceil_divide(band.view.shape.out.width, 2);
    float* const scratch = band.operands.scratch;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t y = band.part.row_begin + i / tiles_per_row * 2;
      const std::int64_t x = i % tiles_per_row * 2;
      transform_gradient_tile(band, tiles, y, x, scratch + tiles.a_begin + i * tiles.a_pixel);
      transform_input_tile(band, tiles, y, x, scratch + tiles.b_begin + i * tiles.b_pixel);
    }
  }
}

/// Transforms four sums along an axis into the sums of three taps.
inline void transform_sums(const __m512* sums, std::int64_t step, __m512* to) {
  const __m512 half = _mm512_set1_ps(0.5F);
  const __m512 middle = (sums[step] + sums[2 * step]) * half;
  to[0] = sums[0] + middle;
  to[step] = (sums[step] - sums[2 * step]) * half;
  to[2 * step] = middle + sums[3 * step];
}

/// Transforms the sums over tiles into the weight gradient of output channels `begin` to `end`;
/// see ConvolutionKernels.
template <class Element>
void transform_sums(const WeightGradientView& tiles,
                    const WeightGradientOperands<Element>& operands, std::int64_t begin,
                    std::int64_t end) {
  const std::int64_t channels = tiles.shape.in.channels;
  for (std::int64_t o = begin; o < end; ++o) {
    for (std::int64_t c = 0; c < tiles.columns; c += kLanes) {
      __m512 tile_sums[kWinogradPositions];
      for (int i = 0; i < kWinogradPositions; ++i) {
        tile_sums[i] = _mm512_loadu_ps(tiles.row_sums(operands.sums, i) + o * tiles.columns + c);
      }
      __m512 rows[3 * kTileRows];
      for (int x = 0; x < kTileRows; ++x) transform_sums(tile_sums + x, kTileRows, rows + x);
      for (int ky = 0; ky < 3; ++ky) {
        __m512 taps[3];
        transform_sums(rows + kTileRows * ky, 1, taps);
        for (int kx = 0; kx < 3; ++kx) {
          store_rounded(operands.weight_gradient + ((o * 3 + ky) * 3 + kx) * channels + c,
                        first_lanes(channels - c), taps[kx]);
        }
      }
    }
  }
}

}  // namespace mnist_train::cpu_kernels::avx512
