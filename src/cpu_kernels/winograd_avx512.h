#pragma once

// Only for sources compiled with AVX-512; see lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"

/// Winograd's algorithm (Lavin and Gray, https://arxiv.org/abs/1509.09308) for 3x3 convolutions
/// with stride 1. Weights, inputs and sums are transformed along both axes. F(2x2, 3x3) needs 16
/// products instead of 36 for a tile of 2x2 outputs, and F(4x4, 3x3) 36 instead of 144 for 4x4
/// outputs.
namespace mnist_train::cpu_kernels::avx512 {

/// Transforms along an axis of tiles with up to `MaxOutputs` outputs. Tiles with up to two outputs
/// use only the first positions.
template <std::int64_t MaxOutputs>
struct Axis;

template <>
struct Axis<2> {
  /// Undoes the scaling of the weights along both axes.
  static __m512 scale(__m512 output) { return output; }
  /// Transforms three taps into positions `step` vectors apart.
  static void weights(const __m512 (&taps)[3], __m512* to, std::int64_t step) {
    const __m512 half = _mm512_set1_ps(0.5F);
    const __m512 outer = (taps[0] + taps[2]) * half;
    const __m512 middle = taps[1] * half;
    to[0] = taps[0];
    to[step] = outer + middle;
    to[2 * step] = outer - middle;
    to[3 * step] = taps[2];
  }
  /// Transforms the inputs of N outputs into positions.
  template <int N>
  [[gnu::always_inline]] static void inputs(__m512 (&d)[N + 2]) {
    const __m512 first = d[0] - d[2];
    const __m512 third = d[2] - d[1];
    d[3] = d[1] - d[3];
    d[1] = d[1] + d[2];
    d[0] = first;
    d[2] = third;
  }
  /// Transforms the sums of positions into N outputs.
  template <int N>
  [[gnu::always_inline]] static void outputs(const __m512 (&sums)[N + 2], __m512 (&to)[N]) {
    to[0] = sums[0] + sums[1] + sums[2];
    to[1] = sums[1] - sums[2] - sums[3];
  }
  /// Transforms the gradients of N outputs into positions: the transpose of `outputs`.
  template <int N>
  [[gnu::always_inline]] static void gradients(const __m512 (&g)[N], __m512 (&to)[N + 2]) {
    to[0] = g[0];
    to[1] = g[0] + g[1];
    to[2] = g[0] - g[1];
    to[3] = _mm512_setzero_ps() - g[1];
  }
  /// Transforms sums of positions, `step` vectors apart, into the gradients of three taps: the
  /// transpose of `weights`.
  static void taps(const __m512* sums, std::int64_t step, __m512 (&to)[3]) {
    const __m512 half = _mm512_set1_ps(0.5F);
    const __m512 middle = (sums[step] + sums[2 * step]) * half;
    to[0] = sums[0] + middle;
    to[1] = (sums[step] - sums[2 * step]) * half;
    to[2] = middle + sums[3 * step];
  }
};

/// The positions are the values of polynomials at infinity, 0, 1, -1, 2 and -2. Weights are scaled
/// for four outputs; for two, the inputs are scaled as well. All factors are integers, so the
/// result is exact for small integers.
template <>
struct Axis<4> {
  static __m512 scale(__m512 output) {
    constexpr float kScale = 24 * 24;
    const __m512 reciprocal = _mm512_set1_ps(1 / kScale);
    const __m512 quotient = output * reciprocal;
    const __m512 rest = _mm512_fnmadd_ps(quotient, _mm512_set1_ps(kScale), output);
    return _mm512_fmadd_ps(rest, reciprocal, quotient);  // correctly rounded
  }
  static void weights(const __m512 (&taps)[3], __m512* to, std::int64_t step) {
    const __m512 outer = (taps[0] + taps[2]) * -4;
    const __m512 middle = taps[1] * -4;
    const __m512 far_outer = taps[0] + taps[2] * 4;
    const __m512 far_middle = taps[1] * 2;
    to[0] = taps[2] * 24;
    to[step] = taps[0] * 6;
    to[2 * step] = outer + middle;
    to[3 * step] = outer - middle;
    to[4 * step] = far_outer + far_middle;
    to[5 * step] = far_outer - far_middle;
  }
  template <int N>
  [[gnu::always_inline]] static void inputs(__m512 (&d)[N + 2]) {
    const __m512 far_odd = d[3] - d[1];
    const __m512 first = (d[0] - d[2]) * 4;
    if constexpr (N == 2) {
      const __m512 sum = (d[1] + d[2]) * -3;
      const __m512 difference = (d[1] - d[2]) * 3;
      d[0] = far_odd;
      d[1] = first;
      d[2] = sum;
      d[3] = difference;
    } else {
      const __m512 far_even = d[4] - d[2];
      const __m512 even = d[4] - d[2] * 4;
      const __m512 odd = d[3] - d[1] * 4;
      d[0] = d[5] - d[3] - far_odd * 4;
      d[1] = first + far_even;
      d[2] = even + odd;
      d[3] = even - odd;
      d[4] = far_even + far_odd * 2;
      d[5] = far_even - far_odd * 2;
    }
  }
  template <int N>
  [[gnu::always_inline]] static void outputs(const __m512 (&sums)[N + 2], __m512 (&to)[N]) {
    const __m512 even = sums[2] + sums[3];
    const __m512 odd = sums[2] - sums[3];
    to[0] = sums[1] + even;
    to[1] = odd;
    if constexpr (N == 4) {
      const __m512 far_even = sums[4] + sums[5];
      const __m512 far_odd = sums[4] - sums[5];
      to[0] = to[0] + far_even;
      to[1] = to[1] + far_odd * 2;
      to[2] = even + far_even * 4;
      to[3] = odd + far_odd * 8;
    }
    to[N - 1] = to[N - 1] + sums[0];
  }
  template <int N>
  [[gnu::always_inline]] static void gradients(const __m512 (&g)[N], __m512 (&to)[N + 2]) {
    __m512 even = g[0];
    __m512 odd = g[1];
    if constexpr (N == 4) {
      const __m512 far_even = g[0] + g[2] * 4;
      const __m512 far_odd = (g[1] + g[3] * 4) * 2;
      even = even + g[2];
      odd = odd + g[3];
      to[4] = far_even + far_odd;
      to[5] = far_even - far_odd;
    }
    to[0] = g[N - 1];
    to[1] = g[0];
    to[2] = even + odd;
    to[3] = even - odd;
  }
  static void taps(const __m512* sums, std::int64_t step, __m512 (&to)[3]) {
    const __m512 even = (sums[2 * step] + sums[3 * step]) * -4;
    const __m512 odd = (sums[2 * step] - sums[3 * step]) * -4;
    const __m512 far_even = sums[4 * step] + sums[5 * step];
    const __m512 far_odd = sums[4 * step] - sums[5 * step];
    to[0] = sums[step] * 6 + even + far_even;
    to[1] = odd + far_odd * 2;
    to[2] = sums[0] * 24 + even + far_even * 4;
  }
};

template <class Element>
using TileAxis = Axis<kTileOutputs<Element>>;

/// Transforms 3x3 taps, which are `tap(0)` to `tap(8)`, into the positions of a tile.
template <class Element, class Tap>
void transform_weights(const Tap& tap, __m512* to) {
  constexpr std::int64_t kSide = kTileSide<Element>;
  __m512 rows[kSide * 3];
  for (int x = 0; x < 3; ++x) {
    TileAxis<Element>::weights({tap(x), tap(3 + x), tap(6 + x)}, rows + x, 3);
  }
  for (std::int64_t y = 0; y < kSide; ++y) {
    TileAxis<Element>::weights({rows[3 * y], rows[3 * y + 1], rows[3 * y + 2]}, to + kSide * y, 1);
  }
}

/// A tile of outputs.
struct Tile {
  std::int64_t y, x;           // of the first output
  std::int64_t height, width;  // outputs inside the image

  template <class Element>
  static Tile make(const ValueShape& out, std::int64_t row_begin, std::int64_t row_end,
                   std::int64_t index) {
    constexpr std::int64_t kOutputs = kTileOutputs<Element>;
    const std::int64_t tiles_per_row = winograd_tiles<Element>(out.width);
    const std::int64_t y = row_begin + index / tiles_per_row * kOutputs;
    const std::int64_t x = index % tiles_per_row * kOutputs;
    return {y, x, smaller(kOutputs, row_end - y), smaller(kOutputs, out.width - x)};
  }
};

/// Calls `action.operator()<H, W>()` with the height and width of the outputs that are computed.
template <class Element, class Action>
[[gnu::always_inline]] inline void with_outputs(const Tile& tile, const Action& action) {
  constexpr int kMax = kTileOutputs<Element>;
  with_constant<2, 2, kMax>(winograd_side(tile.height) - 2, [&]<int H>() {
    with_constant<2, 2, kMax>(winograd_side(tile.width) - 2,
                              [&]<int W>() { action.template operator()<H, W>(); });
  });
}

/// The inputs of a tile. Some may be outside the image; the first pixel is read in place of them
/// and masked, because masked reads of unmapped memory take hundreds of cycles.
template <class Element>
struct TileInputs {
  static constexpr std::int64_t kSide = kTileSide<Element>;

  __mmask16 masks[kSide][kSide];         // zero for inputs outside the image
  std::int64_t distances[kSide][kSide];  // in elements from the first pixel

  /// `first_row` is the image row of the first pixel.
  TileInputs(const ValueShape& in, const Tile& tile, std::int64_t top, std::int64_t left,
             std::int64_t first_row, std::int64_t row, std::int64_t pixel) {
    for (int r = 0; r < kSide; ++r) {
      for (int c = 0; c < kSide; ++c) {
        const std::int64_t y = tile.y - top + r;
        const std::int64_t x = tile.x - left + c;
        const bool is_inside = y >= 0 && y < in.height && x >= 0 && x < in.width;
        masks[r][c] = is_inside ? 0xffff : 0;
        distances[r][c] = is_inside ? (y - first_row) * row + x * pixel : 0;
      }
    }
  }
  /// Transforms one vector of words, at `from` in the first pixel, per input of H x W outputs into
  /// positions `step` floats apart. The halves of a bf16 word are written `half_step` floats apart.
  template <int H, int W>
  [[gnu::always_inline]] void transform(const Element* from, float* to, std::int64_t step,
                                        std::int64_t half_step) const {
    __m512 columns[kDepth<Element>][H + 2][W + 2];
#pragma GCC unroll 6
    for (int c = 0; c < W + 2; ++c) {
      __m512i inputs[H + 2];
#pragma GCC unroll 6
      for (int r = 0; r < H + 2; ++r) {
        inputs[r] = _mm512_maskz_loadu_epi32(masks[r][c], from + distances[r][c]);
      }
#pragma GCC unroll 2
      for (int i = 0; i < kDepth<Element>; ++i) {
        __m512 d[H + 2];
#pragma GCC unroll 6
        for (int r = 0; r < H + 2; ++r) d[r] = to_values<Element>(inputs[r]).v[i];
        TileAxis<Element>::template inputs<H>(d);
#pragma GCC unroll 6
        for (int r = 0; r < H + 2; ++r) columns[i][r][c] = d[r];
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < kDepth<Element>; ++i) {
#pragma GCC unroll 6
      for (int r = 0; r < H + 2; ++r) {
        TileAxis<Element>::template inputs<W>(columns[i][r]);
#pragma GCC unroll 6
        for (int c = 0; c < W + 2; ++c) {
          _mm512_storeu_ps(to + i * half_step + (r * kSide + c) * step, columns[i][r][c]);
        }
      }
    }
  }
};

/// Transforms the inputs of a tile of a block into [position][channel][image].
template <class Element, int H, int W>
[[gnu::noinline]] void transform_tile(const GatherView& view, const Element* block,
                                      const Tile& tile, float* to) {
  const std::int64_t pixel = view.in.pixel_size<Element>();
  const std::int64_t row = view.in.width * pixel;
  const WinogradView& plan = view.winograd;
  const TileInputs<Element> inputs(view.in, tile, plan.top, plan.left, 0, row, pixel);
  for (std::int64_t word = 0; word < words<Element>(view.in.channels); ++word) {
    for (int v = 0; v < kVectors; ++v) {
      inputs.template transform<H, W>(block + word * kWordSize<Element> + v * kVectorSize<Element>,
                                      to + word * kDepth<Element> * kImages + v * kLanes,
                                      plan.position_size, kImages);
    }
  }
}

/// Transforms sums [position][row of the panel][image] into the outputs of a tile and stores them.
/// Positions are `step` floats apart. `results` are those of the first output.
template <class Element, int H, int W>
[[gnu::noinline]] void store_tile(const float* sums, std::int64_t step, const float* bias,
                                  const ValueShape& shape, const Results<Element>& results,
                                  const Tile& tile) {
  constexpr std::int64_t kSide = kTileSide<Element>;
  const std::int64_t pixel = shape.pixel_size<Element>();
  for (std::int64_t m = 0; m < results.rows; m += kDepth<Element>) {
    for (int v = 0; v < kVectors; ++v) {
      Values<Element> outputs[H][W];
#pragma GCC unroll 2
      for (int i = 0; i < kDepth<Element>; ++i) {
        const float* const from = sums + (m + i) * kImages + v * kLanes;
        __m512 rows[H][W + 2];
#pragma GCC unroll 6
        for (int c = 0; c < W + 2; ++c) {
          __m512 column[H + 2];
#pragma GCC unroll 6
          for (int r = 0; r < H + 2; ++r) column[r] = _mm512_load_ps(from + (r * kSide + c) * step);
          __m512 to[H];
          TileAxis<Element>::template outputs<H>(column, to);
#pragma GCC unroll 4
          for (int r = 0; r < H; ++r) rows[r][c] = to[r];
        }
#pragma GCC unroll 4
        for (int r = 0; r < H; ++r) {
          __m512 to[W];
          TileAxis<Element>::template outputs<W>(rows[r], to);
#pragma GCC unroll 4
          for (int c = 0; c < W; ++c) {
            outputs[r][c].v[i] = TileAxis<Element>::scale(to[c]) + bias[m + i];
          }
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < H; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < W; ++c) {
          if (r >= tile.height || c >= tile.width) continue;
          results.store(m, v, outputs[r][c], (r * shape.width + c) * pixel);
        }
      }
    }
  }
}

/// Loads memory into the L2 cache.
inline void prefetch(const void* from, std::int64_t bytes) {
  constexpr std::int64_t kLineBytes = 64;
  const auto* const line = static_cast<const char*>(from);
  for (std::int64_t i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(line + i, 0, 2);
}

/// Computes the outputs of `count` transformed tiles, starting with tile `first`, for the panels of
/// a part. Meanwhile, the memory of the outputs and of the next tiles' inputs is loaded.
template <class Element, int M>
void multiply_tiles(const GatherView& view, const BatchOperands<Element>& operands,
                    const float* panels, const GatherPart& part, std::int64_t first,
                    std::int64_t count) {
  const WinogradView& plan = view.winograd;
  const ValueShape& in = view.in;
  const ValueShape& out = view.out;
  const std::int64_t in_pixel = in.pixel_size<Element>();
  const std::int64_t out_pixel = out.pixel_size<Element>();
  const Element* const in_block = operands.in + part.block * in.block_size<Element>();
  const std::int64_t loaded =  // elements of each input pixel to load per panel
      ceil_divide(in_pixel, part.panel_end - part.panel_begin);
  alignas(64) float sums[kTilePositions<Element> * M * kImages];
  for (std::int64_t panel = part.panel_begin; panel < part.panel_end; ++panel) {
    const float* const weights = panels + panel * view.positions * M;
    const std::int64_t channel = panel * M;
    const std::int64_t rows = smaller(M, out.channels - channel);
    float bias[M] = {};
    for (std::int64_t m = 0; m < rows && operands.bias != nullptr; ++m) {
      bias[m] = to_float(operands.bias[channel + m]);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const auto tile = Tile::make<Element>(out, part.row_begin, part.row_end, first + i);
      const auto next = Tile::make<Element>(out, part.row_begin, part.row_end, first + i + count);
      const float* const inputs = part.scratch + i * plan.tile_size;
      const Element* const next_inputs =
          in_block + ((next.y - plan.top) * in.width + next.x - plan.left) * in_pixel +
          (panel - part.panel_begin) * loaded;
      const std::int64_t offset =
          ((part.block * out.height + tile.y) * out.width + tile.x) * out_pixel + channel * kImages;
      const Results<Element> results{
          operands.addend == nullptr ? nullptr : operands.addend + offset, operands.relu,
          operands.out + offset, rows};
      for (std::int64_t y = 0; y < winograd_side(tile.height); ++y) {
        for (std::int64_t x = 0; x < winograd_side(tile.width); ++x) {
          prefetch(next_inputs + (y * in.width + x) * in_pixel, loaded * sizeof(Element));
          if (y < tile.height && x < tile.width) {
            prefetch(results.out + (y * out.width + x) * out_pixel, M * kImages * sizeof(Element));
          }
          const std::int64_t position = y * kTileSide<Element> + x;
          RegisterSums<M, kVectors> products;
          products.for_each([](int, int, __m512& sum) { sum = _mm512_setzero_ps(); });
          products.add(Factors<float>{weights + position * in.channels * M, 1, M,
                                      inputs + position * plan.position_size, kImages},
                       in.channels);
          products.store(sums + position * M * kImages, kImages);
        }
      }
      with_outputs<Element>(tile, [&]<int H, int W>() {
        store_tile<Element, H, W>(sums, M * kImages, bias, out, results, tile);
      });
    }
  }
}

template <class Element>
void gather_winograd(const GatherView& view, const BatchOperands<Element>& operands,
                     const Element* panels, const GatherPart& part) {
  const WinogradView& plan = view.winograd;
  const std::int64_t count = winograd_tiles<Element>(part.row_end - part.row_begin) *
                             winograd_tiles<Element>(view.out.width);
  const Element* const block = operands.in + part.block * view.in.block_size<Element>();
  for (std::int64_t first = 0; first < count; first += plan.tiles_per_pass) {
    const std::int64_t pass_size = smaller(plan.tiles_per_pass, count - first);
    for (std::int64_t i = 0; i < pass_size; ++i) {
      const auto tile = Tile::make<Element>(view.out, part.row_begin, part.row_end, first + i);
      with_outputs<Element>(tile, [&]<int H, int W>() {
        transform_tile<Element, H, W>(view, block, tile, part.scratch + i * plan.tile_size);
      });
    }
    with_constant<kDepth<Element>, kDepth<Element>, kMaxRows>(view.panel_rows, [&]<int M>() {
      multiply_tiles<Element, M>(view, operands, reinterpret_cast<const float*>(panels), part,
                                 first, pass_size);
    });
  }
}

// Weight gradient.

/// Transforms the gradients of a tile into [position][channel][image]. As in TileInputs, outputs
/// outside the image are not read.
template <class Element, int H, int W>
[[gnu::noinline]] void transform_gradient_tile(const Band<Element>& band, const GradientBand& tiles,
                                               const Tile& tile, float* to) {
  constexpr std::int64_t kSide = kTileSide<Element>;
  constexpr std::int64_t kPrefetched = 4 * kVectorSize<Element>;
  const ValueShape& out = band.view.shape.out;
  const std::int64_t pixel = out.pixel_size<Element>();
  const Element* from =
      band.operands.gradient +
      ((band.part.block_begin * out.height + tile.y) * out.width + tile.x) * pixel;
  for (std::int64_t m = 0; m < out.channels; m += kDepth<Element>) {
    for (int v = 0; v < kVectors; ++v, from += kVectorSize<Element>) {
      __m512 columns[kDepth<Element>][H + 2][W];
#pragma GCC unroll 4
      for (int c = 0; c < W; ++c) {
        Values<Element> outputs[H];
#pragma GCC unroll 4
        for (int r = 0; r < H; ++r) {
          const bool is_inside = r < tile.height && c < tile.width;
          const Element* const output = from + (is_inside ? (r * out.width + c) * pixel : 0);
          __builtin_prefetch(output + kPrefetched, 0, 2);
          outputs[r] = load_words(output, is_inside ? 0xffff : 0);
        }
#pragma GCC unroll 2
        for (int i = 0; i < kDepth<Element>; ++i) {
          __m512 column[H];
          __m512 positions[H + 2];
#pragma GCC unroll 4
          for (int r = 0; r < H; ++r) column[r] = outputs[r].v[i];
          TileAxis<Element>::template gradients<H>(column, positions);
#pragma GCC unroll 6
          for (int r = 0; r < H + 2; ++r) columns[i][r][c] = positions[r];
        }
      }
#pragma GCC unroll 2
      for (int i = 0; i < kDepth<Element>; ++i) {
        float* const channel = to + (m + i) * kImages + v * kLanes;
#pragma GCC unroll 6
        for (int r = 0; r < H + 2; ++r) {
          __m512 positions[W + 2];
          TileAxis<Element>::template gradients<W>(columns[i][r], positions);
#pragma GCC unroll 6
          for (int c = 0; c < W + 2; ++c) {
            _mm512_storeu_ps(channel + (kSide * r + c) * tiles.a_position, positions[c]);
          }
        }
      }
    }
  }
}

/// Transforms the rearranged inputs of a tile into [position][image][channel].
template <class Element, int H, int W>
[[gnu::noinline]] void transform_input_tile(const Band<Element>& band, const GradientBand& tiles,
                                            const Tile& tile, float* to) {
  const auto& [view, part, operands] = band;
  const ConvolutionShape& s = view.shape;
  const TileInputs<Element> inputs(s.in, tile, s.padding.height, s.padding.width, part.in_begin,
                                   part.b_row, part.b_pixel);
  for (std::int64_t word = 0; word < kImageWords<Element>; ++word) {
    const Element* const from = operands.scratch + part.b_begin + word * part.b_word;
    for (std::int64_t c = 0; c < s.in.channels; c += kLanes) {
      inputs.template transform<H, W>(from + c * kDepth<Element>,
                                      to + word * kDepth<Element> * tiles.b_word + c,
                                      tiles.b_position, tiles.b_word);
    }
  }
}

template <class Element>
void transform_tiles(const Band<Element>& band, const GradientBand& tiles, std::int64_t begin,
                     std::int64_t end) {
  auto* const scratch = reinterpret_cast<float*>(band.operands.scratch);
  for (std::int64_t i = begin; i < end; ++i) {
    const auto tile =
        Tile::make<Element>(band.view.shape.out, band.part.row_begin, band.part.row_end, i);
    with_outputs<Element>(tile, [&]<int H, int W>() {
      transform_gradient_tile<Element, H, W>(band, tiles, tile,
                                             scratch + tiles.a_begin + i * tiles.a_pixel);
      transform_input_tile<Element, H, W>(band, tiles, tile,
                                          scratch + tiles.b_begin + i * tiles.b_pixel);
    });
  }
}

/// Transforms the sums over tiles into the weight gradient of output channels `begin` to `end`;
/// see ConvolutionKernels.
template <class Element>
void transform_sums(const WeightGradientView& tiles,
                    const WeightGradientOperands<Element>& operands, std::int64_t begin,
                    std::int64_t end) {
  constexpr int kSide = kTileSide<Element>;
  const std::int64_t channels = tiles.shape.in.channels;
  for (std::int64_t o = begin; o < end; ++o) {
    for (std::int64_t c = 0; c < tiles.columns; c += kLanes) {
      __m512 sums[kSide * kSide];
      for (int i = 0; i < kSide * kSide; ++i) {
        sums[i] = _mm512_loadu_ps(tiles.row_sums(operands.sums, i) + o * tiles.columns + c);
      }
      __m512 columns[3][kSide];
      for (int x = 0; x < kSide; ++x) {
        __m512 taps[3];
        TileAxis<Element>::taps(sums + x, kSide, taps);
        for (int ky = 0; ky < 3; ++ky) columns[ky][x] = taps[ky];
      }
      for (int ky = 0; ky < 3; ++ky) {
        __m512 taps[3];
        TileAxis<Element>::taps(columns[ky], 1, taps);
        for (int kx = 0; kx < 3; ++kx) {
          store_rounded(operands.weight_gradient + ((o * 3 + ky) * 3 + kx) * channels + c,
                        first_lanes(channels - c), TileAxis<Element>::scale(taps[kx]));
        }
      }
    }
  }
}

}  // namespace mnist_train::cpu_kernels::avx512
