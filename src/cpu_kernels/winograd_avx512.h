#pragma once

// Only for sources compiled with AVX-512; see lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"

/// Winograd's algorithm (Lavin and Gray, https://arxiv.org/abs/1509.09308) for 3x3 convolutions
/// with stride 1. Weights, inputs and sums are transformed along both axes. F(2x2, 3x3) needs 16
/// products instead of 36 for a tile of 2x2 outputs, and F(4x4, 3x3) 36 instead of 144 for 4x4
/// outputs.
namespace mnist_train::cpu_kernels::avx512 {

/// Transforms along an axis of tiles with up to `MaxOutputs` outputs. Tiles with N outputs use only
/// the first N + 2 positions, which are the values of polynomials at certain points.
template <std::int64_t MaxOutputs>
struct Axis;

/// Points 0, infinity, 1 and -1.
template <>
struct Axis<2> {
  /// Undoes the scaling of the weights along both axes.
  static __m512 scale(__m512 output) { return output; }
  /// Transforms three taps into positions.
  [[gnu::always_inline]] static void weights(const __m512 (&taps)[3], __m512 (&to)[4]) {
    const __m512 half = _mm512_set1_ps(0.5F);
    const __m512 outer = (taps[0] + taps[2]) * half;
    const __m512 middle = taps[1] * half;
    to[0] = taps[0];
    to[1] = taps[2];
    to[2] = outer + middle;
    to[3] = outer - middle;
  }
  /// Transforms the inputs of N - 2 outputs into positions.
  template <std::size_t N>
  [[gnu::always_inline]] static void inputs(const __m512 (&d)[N], __m512 (&to)[N]) {
    if constexpr (N == 3) {
      to[0] = d[0] - d[1];
      to[1] = d[2] - d[1];
      to[2] = d[1] + d[1];
    } else {
      to[0] = d[0] - d[2];
      to[1] = d[3] - d[1];
      to[2] = d[1] + d[2];
      to[3] = d[2] - d[1];
    }
  }
  /// Transforms the sums of positions into N outputs.
  template <std::size_t N>
  [[gnu::always_inline]] static void outputs(const __m512 (&sums)[N + 2], __m512 (&to)[N]) {
    to[0] = sums[0] + sums[2];
    if constexpr (N == 2) {
      to[0] = to[0] + sums[3];
      to[1] = sums[2] - sums[3];
    }
    to[N - 1] = to[N - 1] + sums[1];
  }
  /// Transforms the gradients of N outputs into positions: the transpose of `outputs`.
  template <std::size_t N>
  [[gnu::always_inline]] static void gradients(const __m512 (&g)[N], __m512 (&to)[N + 2]) {
    to[0] = g[0];
    to[1] = g[N - 1];
    to[2] = g[0];
    if constexpr (N == 2) {
      to[2] = g[0] + g[1];
      to[3] = g[0] - g[1];
    }
  }
  /// Transforms sums of positions into the gradients of three taps: the transpose of `weights`.
  [[gnu::always_inline]] static void taps(const __m512 (&sums)[4], __m512 (&to)[3]) {
    const __m512 half = _mm512_set1_ps(0.5F);
    const __m512 middle = (sums[2] + sums[3]) * half;
    to[0] = sums[0] + middle;
    to[1] = (sums[2] - sums[3]) * half;
    to[2] = middle + sums[1];
  }
};

/// Points infinity, 0, 1, -1, 2 and -2. Weights are scaled for four outputs; for fewer, the inputs
/// are scaled as well. All factors are integers, so the result is exact for small integers.
template <>
struct Axis<4> {
  static __m512 scale(__m512 output) {
    constexpr float kScale = 24 * 24;
    const __m512 reciprocal = _mm512_set1_ps(1 / kScale);
    const __m512 quotient = output * reciprocal;
    const __m512 rest = _mm512_fnmadd_ps(quotient, _mm512_set1_ps(kScale), output);
    return _mm512_fmadd_ps(rest, reciprocal, quotient);  // correctly rounded
  }
  [[gnu::always_inline]] static void weights(const __m512 (&taps)[3], __m512 (&to)[6]) {
    const __m512 outer = (taps[0] + taps[2]) * -4;
    const __m512 middle = taps[1] * -4;
    const __m512 far_outer = taps[0] + taps[2] * 4;
    const __m512 far_middle = taps[1] * 2;
    to[0] = taps[2] * 24;
    to[1] = taps[0] * 6;
    to[2] = outer + middle;
    to[3] = outer - middle;
    to[4] = far_outer + far_middle;
    to[5] = far_outer - far_middle;
  }
  template <std::size_t N>
  [[gnu::always_inline]] static void inputs(const __m512 (&d)[N], __m512 (&to)[N]) {
    if constexpr (N == 3) {
      to[0] = d[2] - d[1];
      to[1] = (d[0] - d[1]) * 4;
      to[2] = d[1] * -6;
    } else {
      const __m512 far_odd = d[3] - d[1];
      const __m512 first = (d[0] - d[2]) * 4;
      if constexpr (N == 4) {
        to[0] = far_odd;
        to[1] = first;
        to[2] = (d[1] + d[2]) * -3;
        to[3] = (d[1] - d[2]) * 3;
      } else if constexpr (N == 5) {
        to[0] = d[4] - d[2] - far_odd * 2;
        to[1] = first + far_odd * 2;
        to[2] = (d[3] - d[2] - d[1] * 2) * 3;
        to[3] = d[3] - d[2] * 3 + d[1] * 2;
        to[4] = far_odd * 4;
      } else {
        const __m512 far_even = d[4] - d[2];
        const __m512 even = d[4] - d[2] * 4;
        const __m512 odd = d[3] - d[1] * 4;
        to[0] = d[5] - d[3] - far_odd * 4;
        to[1] = first + far_even;
        to[2] = even + odd;
        to[3] = even - odd;
        to[4] = far_even + far_odd * 2;
        to[5] = far_even - far_odd * 2;
      }
    }
  }
  /// Output k is the sum of all positions, times the k-th power of their points.
  template <std::size_t N>
  [[gnu::always_inline]] static void outputs(const __m512 (&sums)[N + 2], __m512 (&to)[N]) {
    __m512 even = sums[2];
    __m512 odd = sums[2];
    if constexpr (N >= 2) {
      even = sums[2] + sums[3];
      odd = sums[2] - sums[3];
      to[1] = odd;
    }
    to[0] = sums[1] + even;
    if constexpr (N >= 3) {
      __m512 far_even = sums[4];
      __m512 far_odd = sums[4];
      if constexpr (N == 4) {
        far_even = sums[4] + sums[5];
        far_odd = sums[4] - sums[5];
        to[3] = odd + far_odd * 8;
      }
      to[0] = to[0] + far_even;
      to[1] = to[1] + far_odd * 2;
      to[2] = even + far_even * 4;
    }
    to[N - 1] = to[N - 1] + sums[0];
  }
  template <std::size_t N>
  [[gnu::always_inline]] static void gradients(const __m512 (&g)[N], __m512 (&to)[N + 2]) {
    __m512 even = g[0];
    if constexpr (N >= 3) even = even + g[2];
    to[0] = g[N - 1];
    to[1] = g[0];
    to[2] = even;
    if constexpr (N >= 2) {
      __m512 odd = g[1];
      if constexpr (N == 4) odd = odd + g[3];
      to[2] = even + odd;
      to[3] = even - odd;
    }
    if constexpr (N >= 3) {
      const __m512 far_even = g[0] + g[2] * 4;
      __m512 far_odd = g[1] * 2;
      if constexpr (N == 4) {
        far_odd = far_odd + g[3] * 8;
        to[5] = far_even - far_odd;
      }
      to[4] = far_even + far_odd;
    }
  }
  [[gnu::always_inline]] static void taps(const __m512 (&sums)[6], __m512 (&to)[3]) {
    const __m512 even = (sums[2] + sums[3]) * -4;
    const __m512 odd = (sums[2] - sums[3]) * -4;
    const __m512 far_even = sums[4] + sums[5];
    const __m512 far_odd = sums[4] - sums[5];
    to[0] = sums[1] * 6 + even + far_even;
    to[1] = odd + far_odd * 2;
    to[2] = sums[0] * 24 + even + far_even * 4;
  }
};

template <class Element>
using TileAxis = Axis<kTileOutputs<Element>>;

/// Transforms From x From2 elements, `load(row, column)`, along columns, then along rows, and calls
/// `store(row, column, d, result)` for channel `d` of the To x To2 results. `transform` is a
/// function of TileAxis.
template <class Element, int From, int From2, int To, int To2, class Load, class Transform,
          class Store>
[[gnu::always_inline]] inline void transform_square(const Load& load, const Transform& transform,
                                                    const Store& store) {
  __m512 rows[kDepth<Element>][To][From2];
#pragma GCC unroll 6
  for (int c = 0; c < From2; ++c) {
    Values<Element> column[From];
#pragma GCC unroll 6
    for (int r = 0; r < From; ++r) column[r] = load(r, c);
#pragma GCC unroll 2
    for (int d = 0; d < kDepth<Element>; ++d) {
      __m512 from[From];
      __m512 results[To];
#pragma GCC unroll 6
      for (int r = 0; r < From; ++r) from[r] = column[r].v[d];
      transform(from, results);
#pragma GCC unroll 6
      for (int r = 0; r < To; ++r) rows[d][r][c] = results[r];
    }
  }
#pragma GCC unroll 2
  for (int d = 0; d < kDepth<Element>; ++d) {
#pragma GCC unroll 6
    for (int r = 0; r < To; ++r) {
      __m512 results[To2];
      transform(rows[d][r], results);
#pragma GCC unroll 6
      for (int c = 0; c < To2; ++c) store(r, c, d, results[c]);
    }
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

/// Calls `action.operator()<H, W>()` with the height and width of a tile.
template <class Element, class Action>
[[gnu::always_inline]] inline void with_size(const Tile& tile, const Action& action) {
  constexpr int kMax = kTileOutputs<Element>;
  with_constant<1, 1, kMax>(tile.height, [&]<int H>() {
    with_constant<1, 1, kMax>(tile.width, [&]<int W>() { action.template operator()<H, W>(); });
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
    transform_square<Element, H + 2, W + 2, H + 2, W + 2>(
        [&](int r, int c) __attribute__((always_inline)) {
          return to_values<Element>(_mm512_maskz_loadu_epi32(masks[r][c], from + distances[r][c]));
        },
        [](const auto& inputs, auto& positions)
            __attribute__((always_inline)) { TileAxis<Element>::inputs(inputs, positions); },
        [&](int r, int c, int d, __m512 position) __attribute__((always_inline)) {
          _mm512_storeu_ps(to + d * half_step + (r * kSide + c) * step, position);
        });
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
                                  const ValueShape& shape, const Results<Element>& results) {
  constexpr std::int64_t kSide = kTileSide<Element>;
  const std::int64_t pixel = shape.pixel_size<Element>();
  for (std::int64_t m = 0; m < results.rows; m += kDepth<Element>) {
    for (int v = 0; v < kVectors; ++v) {
      Values<Element> outputs[H][W];
#pragma GCC unroll 2
      for (int i = 0; i < kDepth<Element>; ++i) {
        const float* const from = sums + (m + i) * kImages + v * kLanes;
        transform_square<float, H + 2, W + 2, H, W>(
            [&](int r, int c) __attribute__((always_inline)) {
              return Values<float>{_mm512_load_ps(from + (r * kSide + c) * step)};
            },
            [](const auto& products, auto& to)
                __attribute__((always_inline)) { TileAxis<Element>::outputs(products, to); },
            [&](int r, int c, int, __m512 output) __attribute__((always_inline)) {
              outputs[r][c].v[i] = TileAxis<Element>::scale(output) + bias[m + i];
            });
      }
#pragma GCC unroll 4
      for (int r = 0; r < H; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < W; ++c) {
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
          for (std::int64_t c = 0; c < in.channels; c += kMaxTerms<Element>) {
            RegisterSums<M, kVectors> products;
            products.set_to_zero();
            products.add(
                Factors<float>{weights + (position * view.padded_channels() + c) * M, 1, M,
                               inputs + position * plan.position_size + c * kImages, kImages},
                smaller(kMaxTerms<Element>, in.channels - c));
            products.store_total(sums + position * M * kImages, kImages, c == 0);
          }
        }
      }
      with_size<Element>(tile, [&]<int H, int W>() {
        store_tile<Element, H, W>(sums, M * kImages, bias, out, results);
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
      with_size<Element>(tile, [&]<int H, int W>() {
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

/// Transforms the gradients of a tile into [position][channel][image].
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
      transform_square<Element, H, W, H + 2, W + 2>(
          [&](int r, int c) __attribute__((always_inline)) {
            const Element* const output = from + (r * out.width + c) * pixel;
            __builtin_prefetch(output + kPrefetched, 0, 2);
            return load_words(output);
          },
          [](const auto& gradients, auto& positions) __attribute__((always_inline)) {
            TileAxis<Element>::gradients(gradients, positions);
          },
          [&](int r, int c, int d, __m512 position) __attribute__((always_inline)) {
            _mm512_storeu_ps(
                to + (m + d) * kImages + v * kLanes + (kSide * r + c) * tiles.a_position, position);
          });
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
    with_size<Element>(tile, [&]<int H, int W>() {
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
      transform_square<float, kSide, kSide, 3, 3>(
          [&](int y, int x) {
            return Values<float>{_mm512_loadu_ps(tiles.row_sums(operands.sums, y * kSide + x) +
                                                 o * tiles.columns + c)};
          },
          [](const auto& sums, auto& taps) { TileAxis<Element>::taps(sums, taps); },
          [&](int ky, int kx, int, __m512 gradient) {
            store_rounded(operands.weight_gradient + ((o * 3 + ky) * 3 + kx) * channels + c,
                          first_lanes(channels - c), TileAxis<Element>::scale(gradient));
          });
    }
  }
}

}  // namespace mnist_train::cpu_kernels::avx512
