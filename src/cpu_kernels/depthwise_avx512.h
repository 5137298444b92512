#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/depthwise_kernels.h"
#include "cpu_kernels/lanes_avx512.h"

/// Depthwise convolutions: products of vectors of images and a weight, summed in fp32.
namespace mnist_train::cpu_kernels::avx512 {

// Load one channel of 16 images of a pixel.

inline __m512 load_channel(const float* pixel, std::int64_t channel, std::int64_t v) {
  return _mm512_loadu_ps(pixel + channel * kImages + v * kLanes);
}
inline __m512 load_channel(const Bf16Bits* pixel, std::int64_t channel, std::int64_t v) {
  const Bf16Bits* const word = pixel + channel / 2 * kWordSize<Bf16Bits>;
  const __m128i shift = _mm_cvtsi32_si128(channel % 2 == 0 ? 16 : 0);
  const __m512i first = _mm512_sll_epi32(_mm512_loadu_si512(word + v * 2 * kLanes), shift);
  return _mm512_castsi512_ps(
      _mm512_and_si512(first, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
}

/// A word of T columns of a tile.
template <class Element, int T>
struct TileWord {
  template <class Action>
  [[gnu::always_inline]] void for_each(const Action& action) {
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) action(t, v, of[t][v]);
    }
  }
  [[gnu::always_inline]] void load(const Element* from, std::int64_t step) {
    for_each([&](int t, int v, Values<Element>& values) {
      values = load_words(from + t * step + v * kWordSize<Element> / kVectors);
    });
  }

  Values<Element> of[T][kVectors];
};

/// Taps of a row and a tile. Loops over words copy it, because the compiler must assume that stores
/// of vectors change memory that others see.
struct TileTaps {
  TileTaps(const DepthwiseView& view, std::int64_t y, const DepthwiseTile& tile)
      : rows(view.row_taps + view.row_begin[y]),
        rows_end(view.row_taps + view.row_begin[y + 1]),
        runs(view.runs + tile.run_begin),
        runs_end(view.runs + tile.run_end),
        in_step(view.in_step),
        weight_step(view.weight_step) {}

  const DepthwiseTap *rows, *rows_end;
  const DepthwiseRun *runs, *runs_end;
  std::int64_t in_step, weight_step;
};

/// Calls `action.operator()<K>(offset in the input, weight)` for all runs of K taps.
template <class Action>
[[gnu::always_inline]] inline void for_each_run(const TileTaps& taps, const Action& action) {
  static_assert(kMostTapsOfRun == 5);
  for (const DepthwiseTap* row = taps.rows; row < taps.rows_end; ++row) {
    for (const DepthwiseRun* run = taps.runs; run < taps.runs_end; ++run) {
      const std::int64_t in = row->in + run->in;
      const std::int64_t weight = row->weight + run->weight;
      switch (run->taps) {
        case 1:
          action.template operator()<1>(in, weight);
          break;
        case 2:
          action.template operator()<2>(in, weight);
          break;
        case 3:
          action.template operator()<3>(in, weight);
          break;
        case 4:
          action.template operator()<4>(in, weight);
          break;
        default:
          action.template operator()<5>(in, weight);
      }
    }
  }
}

/// Calls `action(column, tap, vector, input)` for all products of T columns and a run of K taps,
/// which have T + K - 1 columns of the input.
template <class Element, int T, int K, class Load, class Action>
[[gnu::always_inline]] inline void for_each_product(const Element* from, std::int64_t step,
                                                    const Load& load, const Action& action) {
#pragma GCC unroll 8
  for (int column = 0; column < T + K - 1; ++column, from += step) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const Values<Element> x = load(from, v);
#pragma GCC unroll 5
      for (int k = 0; k < K; ++k) {
        if (column - k >= 0 && column - k < T) action(column - k, k, v, x);
      }
    }
  }
}

/// Adds the products of a word if input and output have the same channels.
template <class Element, int T>
[[gnu::always_inline]] inline void add_word(const TileTaps& taps, const Element* in,
                                            const float* weights, TileWord<Element, T>& sums) {
  const auto load = [](const Element* x, int v) __attribute__((always_inline)) {
    return load_words(x + v * kWordSize<Element> / kVectors);
  };
  for_each_run(
      taps, [&]<int K>(std::int64_t from, std::int64_t first) __attribute__((always_inline)) {
        Values<Element> weight[K];
#pragma GCC unroll 5
        for (int k = 0; k < K; ++k) {
          const float* const of_tap = weights + (first + k * taps.weight_step) * kDepth<Element>;
          for (int d = 0; d < kDepth<Element>; ++d) weight[k].of[d] = _mm512_set1_ps(of_tap[d]);
        }
        for_each_product<Element, T, K>(
            in + from, taps.in_step, load,
            [&](int t, int k, int v, const Values<Element>& x) __attribute__((always_inline)) {
              for (int d = 0; d < kDepth<Element>; ++d) {
                sums.of[t][v].of[d] =
                    _mm512_fmadd_ps(x.of[d], weight[k].of[d], sums.of[t][v].of[d]);
              }
            });
      });
}

/// The same if channels of the layer's input have several of its output.
template <class Element, int T>
[[gnu::always_inline]] inline void add_channels(const DepthwiseView& view, const TileTaps& taps,
                                                const Element* in, const float* weights,
                                                std::int64_t word, TileWord<Element, T>& sums) {
  const std::int64_t sources = view.backward ? view.multiple : 1;
  for (int d = 0; d < kDepth<Element>; ++d) {
    const std::int64_t channel = word * kDepth<Element> + d;
    if (channel >= view.out.channels) continue;
    for (std::int64_t i = channel * sources; i < (channel + 1) * sources; ++i) {  // of the layer
      const std::int64_t source = view.backward ? i : i / view.multiple;
      const float* const of_channel =
          weights + i % kDepth<Element> + i / kDepth<Element> * view.kernel_taps * kDepth<Element>;
      for_each_run(taps, [&]<int K>(std::int64_t from, std::int64_t weight) {
        for (int k = 0; k < K; ++k, from += taps.in_step, weight += taps.weight_step) {
          const __m512 factor = _mm512_set1_ps(of_channel[weight * kDepth<Element>]);
          sums.for_each([&](int t, int v, Values<Element>& sum) {
            const Element* const pixel = in + from + t * taps.in_step;
            sum.of[d] = _mm512_fmadd_ps(load_channel(pixel, source, v), factor, sum.of[d]);
          });
        }
      });
    }
  }
}

/// Computes words of T columns of row y.
template <class Element, int T, bool Multiple>
void sum_tile(const DepthwiseView& view, const GatherOperands<Element>& operands, std::int64_t y,
              const DepthwiseTile& tile, std::int64_t word_begin, std::int64_t word_end) {
  const TileTaps taps(view, y, tile);
  const GatherOperands<Element> o = operands;
  const auto* const weights = reinterpret_cast<const float*>(o.packed);
  const std::int64_t pixel_size = words<Element>(view.out.channels) * kWordSize<Element>;
  const std::int64_t step = view.tile_step * pixel_size;
  const std::int64_t of_word = view.kernel_taps * kDepth<Element>;
  const std::int64_t channels = view.out.channels;
  const __m512 lowest = _mm512_set1_ps(o.relu ? 0 : -__builtin_inff());
  std::int64_t out = (y * view.out.width + tile.first) * pixel_size;
  out += word_begin * kWordSize<Element>;
  for (std::int64_t word = word_begin; word < word_end; ++word, out += kWordSize<Element>) {
    TileWord<Element, T> sums;
    if (o.addend != nullptr) {
      sums.load(o.addend + out, step);
    } else {
      Values<Element> bias;
      for (int d = 0; d < kDepth<Element>; ++d) {
        const std::int64_t channel = word * kDepth<Element> + d;
        bias.of[d] = _mm512_set1_ps(o.bias != nullptr && channel < channels ? o.bias[channel] : 0);
      }
      sums.for_each([&](int, int, Values<Element>& sum) { sum = bias; });
    }
    if (Multiple) {
      add_channels(view, taps, o.in, weights, word, sums);
    } else {
      add_word(taps, o.in + word * kWordSize<Element>, weights + word * of_word, sums);
    }
    sums.for_each([&](int t, int v, Values<Element>& sum) __attribute__((always_inline)) {
      for (__m512& value : sum.of) value = _mm512_max_ps(lowest, value);
      store_words(o.out + out + t * step + v * kWordSize<Element> / kVectors, sum);
    });
  }
}

/// Calls `action.operator()<T>()` for the number of columns of a tile.
template <class Action>
[[gnu::always_inline]] inline void with_columns(std::int32_t count, const Action& action) {
  switch (count) {
    case 1:
      return action.template operator()<1>();
    case 2:
      return action.template operator()<2>();
    case 3:
      return action.template operator()<3>();
    default:
      return action.template operator()<kMostColumns>();
  }
}

/// Words are computed in parts for which the inputs of a tile fit into the L1 cache; from one row
/// to the next, most of them are the same.
template <class Element>
void depthwise_sum(const DepthwiseView& view, const GatherOperands<Element>& operands,
                   const GatherPart& part) {
  for (std::int64_t word = part.panel_begin; word < part.panel_end; word += view.part_words) {
    const std::int64_t word_end = smaller(word + view.part_words, part.panel_end);
    for (std::int64_t i = 0; i < view.tile_count; ++i) {
      const DepthwiseTile& tile = view.tiles[i];
      with_columns(tile.count, [&]<int T>() {
        for (std::int64_t y = part.row_begin; y < part.row_end; ++y) {
          view.multiple == 1 ? sum_tile<Element, T, false>(view, operands, y, tile, word, word_end)
                             : sum_tile<Element, T, true>(view, operands, y, tile, word, word_end);
        }
      });
    }
  }
}

/// Products of a word of T gradients and its inputs, added to the lanes of its weights.
/// `load(pixel, v)` loads inputs.
template <class Element, int T, class Load>
[[gnu::always_inline]] inline void add_word_products(const TileTaps& taps, const Load& load,
                                                     const Element* in, TileWord<Element, T>& g,
                                                     float* lanes) {
  for_each_run(
      taps, [&]<int K>(std::int64_t from, std::int64_t first) __attribute__((always_inline)) {
        Values<Element> sums[K];
#pragma GCC unroll 5
        for (int k = 0; k < K; ++k) {
          for (__m512& sum : sums[k].of) sum = _mm512_setzero_ps();
        }
        for_each_product<Element, T, K>(
            in + from, taps.in_step, load,
            [&](int t, int k, int v, const Values<Element>& x) __attribute__((always_inline)) {
              for (int d = 0; d < kDepth<Element>; ++d) {
                sums[k].of[d] = _mm512_fmadd_ps(x.of[d], g.of[t][v].of[d], sums[k].of[d]);
              }
            });
#pragma GCC unroll 5
        for (int k = 0; k < K; ++k) {
          for (int d = 0; d < kDepth<Element>; ++d) {
            float* const to = lanes + ((first + k) * kDepth<Element> + d) * kLanes;
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sums[k].of[d]));
          }
        }
      });
}

/// The same for words and T columns of row y, whose gradients begin at `gradient`.
template <class Element, int T>
void add_tile_products(const DepthwiseView& view, std::int64_t word_begin, std::int64_t word_end,
                       std::int64_t y, const DepthwiseTile& tile, const Element* in,
                       const Element* gradient, float* lanes) {
  const TileTaps taps(view, y, tile);
  const std::int64_t step = words<Element>(view.out.channels) * kWordSize<Element>;
  const std::int64_t of_word = view.kernel_taps * kDepth<Element> * kLanes;
  const std::int64_t multiple = view.multiple;
  for (std::int64_t word = word_begin; word < word_end; ++word, lanes += of_word) {
    TileWord<Element, T> g;
    g.load(gradient + word * kWordSize<Element>, step);
    if (multiple == 1) {
      const auto load = [](const Element* x, int v) __attribute__((always_inline)) {
        return load_words(x + v * kWordSize<Element> / kVectors);
      };
      add_word_products(taps, load, in + word * kWordSize<Element>, g, lanes);
    } else {
      const auto load = [&](const Element* pixel, int v) {
        Values<Element> x;
        for (int d = 0; d < kDepth<Element>; ++d) {
          x.of[d] = load_channel(pixel, (word * kDepth<Element> + d) / multiple, v);
        }
        return x;
      };
      add_word_products(taps, load, in, g, lanes);
    }
  }
}

/// Adds the lanes to the sums, and clears them.
inline void flush_lanes(std::int64_t count, float* lanes, float* sums) {
  for (std::int64_t i = 0; i < count; ++i, lanes += kLanes) {
    sums[i] += _mm512_reduce_add_ps(_mm512_loadu_ps(lanes));
    _mm512_storeu_ps(lanes, _mm512_setzero_ps());
  }
}

template <class Element>
void depthwise_gradient(const DepthwiseView& view, std::int64_t blocks,
                        const GradientFactors<Element>& factors, std::int64_t word_begin,
                        std::int64_t word_end, float* sums) {
  const std::int64_t of_word = view.kernel_taps * kDepth<Element>;
  const std::int64_t weights = (word_end - word_begin) * of_word;
  const std::int64_t pixel_size = words<Element>(view.out.channels) * kWordSize<Element>;
  float* const lanes = reinterpret_cast<float*>(factors.scratch) + word_begin * of_word * kLanes;
  sums += word_begin * of_word;
  __builtin_memset(lanes, 0, sizeof(float) * static_cast<std::size_t>(kLanes * weights));
  __builtin_memset(sums, 0, sizeof(float) * static_cast<std::size_t>(weights));
  std::int64_t pixels = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const Element* const in = factors.in + block * view.in.block_size<Element>();
    const Element* const gradient = factors.gradient + block * view.out.block_size<Element>();
    for (std::int64_t i = 0; i < view.tile_count; ++i) {
      const DepthwiseTile& tile = view.tiles[i];
      for (std::int64_t y = 0; y < view.out.height; ++y) {
        const Element* const pixel = gradient + (y * view.out.width + tile.first) * pixel_size;
        with_columns(tile.count, [&]<int T>() {
          add_tile_products<Element, T>(view, word_begin, word_end, y, tile, in, pixel, lanes);
        });
        pixels += tile.count;
        if (pixels < kLanePixels) continue;
        flush_lanes(weights, lanes, sums);
        pixels = 0;
      }
    }
  }
  flush_lanes(weights, lanes, sums);
}

}  // namespace mnist_train::cpu_kernels::avx512
