#pragma once

// Only for sources compiled with AVX-512; see lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"

/// Depthwise convolutions: vectors of images times broadcast weights, summed in fp32.
namespace mnist_train::cpu_kernels::avx512 {

/// One word for T columns of a tile.
template <class Element, int T>
struct TileWord {
  template <class Action>
  [[gnu::always_inline]] void for_each(const Action& action) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) action(t, v, values[t][v]);
    }
  }
  [[gnu::always_inline]] void load(const Element* from, std::int64_t step) {
    for_each([&](int t, int v, Values<Element>& word) {
      word = load_words(from + t * step + v * kVectorSize<Element>);
    });
  }

  Values<Element> values[T][kVectors];
};

/// The taps of a tile in one row. Loops over words use this local copy of the plan, because the
/// compiler must assume that vector stores modify memory that is visible elsewhere.
template <class Element>
struct TileTaps {
  TileTaps(const GatherView& view, std::int64_t y, const DepthwiseTile& tile)
      : rows(view.rows + view.row_begin[y]), rows_end(view.rows + view.row_begin[y + 1]) {
    const std::int64_t pixel = view.in.pixel_size<Element>();
    row_size = view.in.width * pixel;
    kernel_width = view.kernel_width;
    in = tile.in * pixel;
    weight = tile.kernel;
    count = tile.taps;
    in_step = view.depthwise.in_step * pixel;
    tap_in = pixel;
    tap_weight = view.tap_kernel;
  }

  const Tap *rows, *rows_end;
  std::int64_t row_size, kernel_width;
  std::int64_t in, weight, count;  // per row
  std::int64_t in_step;            // between columns
  std::int64_t tap_in, tap_weight;
};

/// Calls `action.operator()<K>(offset in the input, first weight)` for all runs of K taps. K can
/// exceed 1 if each tap of a column reads the same input as the previous tap of the next column.
template <class Element, class Action>
[[gnu::always_inline]] inline void for_each_tap_run(const TileTaps<Element>& taps,
                                                    const Action& action) {
  constexpr int kMax = 7;
  const bool overlap = taps.tap_in == taps.in_step && taps.count > 0 && taps.count <= kMax;
  const std::int64_t run_length = overlap ? taps.count : 1;
  with_constant<1, 1, kMax>(
      run_length, [&]<int K>() __attribute__((always_inline)) {
        for (const Tap* row = taps.rows; row < taps.rows_end; ++row) {
          std::int64_t in = row->in * taps.row_size + taps.in;
          std::int64_t weight = row->kernel * taps.kernel_width + taps.weight;
          if constexpr (K > 1) {
            action.template operator()<K>(in, weight);
          } else {
            for (std::int64_t i = 0; i < taps.count; ++i) {
              action.template operator()<1>(in, weight);
              in += taps.tap_in;
              weight += taps.tap_weight;
            }
          }
        }
      });
}

/// Calls `action(column, tap, vector, input)` for all products of T columns and a run of K taps,
/// which cover T + K - 1 input columns.
template <class Element, int T, int K, class Action>
[[gnu::always_inline]] inline void for_each_product(const Element* from, std::int64_t step,
                                                    const Action& action) {
#pragma GCC unroll 10
  for (int column = 0; column < T + K - 1; ++column, from += step) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const Values<Element> x = load_words(from + v * kVectorSize<Element>);
#pragma GCC unroll 7
      for (int k = 0; k < K; ++k) {
        if (column - k >= 0 && column - k < T) action(column - k, k, v, x);
      }
    }
  }
}

/// Adds the products of a word; `in` and `weights` are its inputs and weights.
template <class Element, int T>
[[gnu::always_inline]] inline void add_word(const TileTaps<Element>& taps, const Element* in,
                                            const float* weights, TileWord<Element, T>& sums) {
  for_each_tap_run(
      taps, [&]<int K>(std::int64_t from, std::int64_t first) __attribute__((always_inline)) {
        Values<Element> weight[K];
#pragma GCC unroll 7
        for (int k = 0; k < K; ++k) {
          weight[k] = broadcast<Element>(weights + (first + k * taps.tap_weight) * kDepth<Element>);
        }
        for_each_product<Element, T, K>(
            in + from, taps.in_step,
            [&](int t, int k, int v, const Values<Element>& x) __attribute__((always_inline)) {
              for (int d = 0; d < kDepth<Element>; ++d) {
                __m512& sum = sums.values[t][v].v[d];
                sum = _mm512_fmadd_ps(x.v[d], weight[k].v[d], sum);
              }
            });
      });
}

/// Computes words `word_begin` to `word_end` of T columns in row y of a block.
template <int T, class Element>
void sum_tile(const GatherView& view, const BatchOperands<Element>& operands, const float* weights,
              std::int64_t block, std::int64_t y, const DepthwiseTile& tile,
              std::int64_t word_begin, std::int64_t word_end) {
  const TileTaps<Element> taps(view, y, tile);
  const BatchOperands<Element> o = operands;
  const Element* const in = o.in + block * view.in.block_size<Element>();
  const std::int64_t pixel_size = view.out.pixel_size<Element>();
  const std::int64_t step = view.depthwise.out_step * pixel_size;
  const std::int64_t channels = view.out.channels;
  const std::int64_t stride = view.positions * kDepth<Element>;
  const __m512 lowest = _mm512_set1_ps(o.relu ? 0 : -__builtin_inff());
  std::int64_t out = ((block * view.out.height + y) * view.out.width + tile.first) * pixel_size +
                     word_begin * kWordSize<Element>;
  for (std::int64_t word = word_begin; word < word_end; ++word, out += kWordSize<Element>) {
    TileWord<Element, T> sums;
    if (o.addend != nullptr) {
      sums.load(o.addend + out, step);
    } else {
      Values<Element> bias;
      for (int d = 0; d < kDepth<Element>; ++d) {
        const std::int64_t channel = word * kDepth<Element> + d;
        bias.v[d] =
            _mm512_set1_ps(o.bias != nullptr && channel < channels ? to_float(o.bias[channel]) : 0);
      }
      sums.for_each([&](int, int, Values<Element>& sum) { sum = bias; });
    }
    add_word(taps, in + word * kWordSize<Element>, weights + word * stride, sums);
    sums.for_each([&](int t, int v, Values<Element>& sum) __attribute__((always_inline)) {
      for (__m512& value : sum.v) value = _mm512_max_ps(lowest, value);
      store_words(o.out + out + t * step + v * kVectorSize<Element>, sum);
    });
  }
}

/// Calls `action.operator()<T>(tile)` for all tiles; T is the tile's number of columns.
template <class Action>
void for_each_tile(const GatherView& view, const Action& action) {
  for (std::int64_t i = 0; i < view.depthwise.count; ++i) {
    const DepthwiseTile& tile = view.depthwise.tiles[i];
    with_constant<1, 1, kMaxColumns>(tile.count,
                                     [&]<int T>() { action.template operator()<T>(tile); });
  }
}

/// Computes few enough words at once that a tile's inputs fit into the L1 cache, because
/// consecutive rows share most of their inputs.
template <class Element>
void sum_depthwise(const GatherView& view, const BatchOperands<Element>& operands,
                   const Element* packed, const GatherPart& part) {
  const auto* const weights = reinterpret_cast<const float*>(packed);
  const std::int64_t step = view.depthwise.words_per_pass;
  for (std::int64_t word = part.panel_begin; word < part.panel_end; word += step) {
    const std::int64_t word_end = smaller(word + step, part.panel_end);
    for_each_tile(view, [&]<int T>(const DepthwiseTile& tile) {
      for (std::int64_t y = part.row_begin; y < part.row_end; ++y) {
        sum_tile<T>(view, operands, weights, part.block, y, tile, word, word_end);
      }
    });
  }
}

/// Adds the products of one word of T output gradients and its inputs to the lanes of its weights.
template <class Element, int T>
[[gnu::always_inline]] inline void add_word_products(const TileTaps<Element>& taps,
                                                     const Element* in,
                                                     const TileWord<Element, T>& g, float* lanes) {
  for_each_tap_run(
      taps, [&]<int K>(std::int64_t from, std::int64_t first) __attribute__((always_inline)) {
        Values<Element> sums[K] = {};
        for_each_product<Element, T, K>(
            in + from, taps.in_step,
            [&](int t, int k, int v, const Values<Element>& x) __attribute__((always_inline)) {
              sums[k] = multiply_add(x, g.values[t][v], sums[k]);
            });
#pragma GCC unroll 7
        for (int k = 0; k < K; ++k) {
          for (int d = 0; d < kDepth<Element>; ++d) {
            float* const to = lanes + ((first + k) * kDepth<Element> + d) * kLanes;
            _mm512_storeu_ps(to, _mm512_loadu_ps(to) + sums[k].v[d]);
          }
        }
      });
}

/// Like add_word_products, for multiple words in row y; the tile's gradients start at `gradient`.
template <int T, class Element>
void add_tile_products(const GatherView& view, std::int64_t word_begin, std::int64_t word_end,
                       std::int64_t y, const DepthwiseTile& tile, const Element* in,
                       const Element* gradient, float* lanes) {
  const TileTaps<Element> taps(view, y, tile);
  const std::int64_t step = view.out.pixel_size<Element>();
  const std::int64_t stride = view.positions * kDepth<Element> * kLanes;
  for (std::int64_t word = word_begin; word < word_end; ++word, lanes += stride) {
    TileWord<Element, T> g;
    g.load(gradient + word * kWordSize<Element>, step);
    add_word_products(taps, in + word * kWordSize<Element>, g, lanes);
  }
}

/// Adds each weight's lanes to its sum and clears them.
inline void flush_lanes(std::int64_t count, float* lanes, float* sums) {
  for (std::int64_t i = 0; i < count; ++i, lanes += kLanes) {
    sums[i] += _mm512_reduce_add_ps(_mm512_loadu_ps(lanes));
    _mm512_storeu_ps(lanes, _mm512_setzero_ps());
  }
}

template <class Element>
void depthwise_gradient(const GatherView& view, const WeightGradientOperands<Element>& operands,
                        std::int64_t word_begin, std::int64_t word_end) {
  constexpr std::int64_t kLanePixels = 128;  // pixels whose products are summed in lanes
  const std::int64_t stride = view.positions * kDepth<Element>;
  const std::int64_t weights = (word_end - word_begin) * stride;
  const std::int64_t pixel_size = view.out.pixel_size<Element>();
  float* const lanes = reinterpret_cast<float*>(operands.scratch) + word_begin * stride * kLanes;
  float* const sums = operands.sums + word_begin * stride;
  __builtin_memset(lanes, 0, sizeof(float) * static_cast<std::size_t>(kLanes * weights));
  __builtin_memset(sums, 0, sizeof(float) * static_cast<std::size_t>(weights));
  std::int64_t pixels = 0;
  for (std::int64_t block = 0; block < operands.blocks; ++block) {
    const Element* const in = operands.in + block * view.in.block_size<Element>();
    const Element* const gradient = operands.gradient + block * view.out.block_size<Element>();
    for_each_tile(view, [&]<int T>(const DepthwiseTile& tile) {
      for (std::int64_t y = 0; y < view.out.height; ++y) {
        const Element* const pixel = gradient + (y * view.out.width + tile.first) * pixel_size;
        add_tile_products<T>(view, word_begin, word_end, y, tile, in, pixel, lanes);
        pixels += tile.count;
        if (pixels < kLanePixels) continue;
        flush_lanes(weights, lanes, sums);
        pixels = 0;
      }
    });
  }
  flush_lanes(weights, lanes, sums);
}

}  // namespace mnist_train::cpu_kernels::avx512
