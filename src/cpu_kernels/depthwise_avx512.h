#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/depthwise_kernels.h"
#include "cpu_kernels/lanes_avx512.h"

/// Depthwise convolutions: products of vectors of images and a weight, summed in fp32.
namespace mnist_train::cpu_kernels::avx512 {

// Load one channel of 16 images of a pixel.

inline __m512 load_channel(const float* pixel, std::int64_t channel, int v) {
  return _mm512_loadu_ps(pixel + channel * kImages + v * kLanes);
}
inline __m512 load_channel(const Bf16Bits* pixel, std::int64_t channel, int v) {
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

/// Calls `action(tap of the row, tap of the column)` for all taps of a row and tile.
template <class Action>
[[gnu::always_inline]] inline void for_each_tap(const DepthwiseView& view, std::int64_t y,
                                                const DepthwiseTile& tile, const Action& action) {
  for (std::int32_t r = view.row_begin[y]; r < view.row_begin[y + 1]; ++r) {
    const DepthwiseTap row = view.row_taps[r];
    for (std::int32_t c = tile.tap_begin; c < tile.tap_end; ++c) {
      const DepthwiseTap column = view.column_taps[c];
      action(DepthwiseTap{row.in + column.in, row.weight + column.weight});
    }
  }
}

/// Sums of one row. Elements that it reads and writes are at the same offsets for all words.
template <class Element>
class DepthwiseRow {
 public:
  DepthwiseRow(const DepthwiseView& view, const GatherOperands<Element>& operands, std::int64_t y)
      : view_(view),
        operands_(operands),
        weights_(reinterpret_cast<const float*>(operands.packed)),
        y_(y),
        pixel_size_(words<Element>(view.out.channels) * kWordSize<Element>),
        tile_step_(view.tile_step * pixel_size_) {}

  template <int T>
  void compute(const DepthwiseTile& tile, std::int64_t word_begin, std::int64_t word_end) const {
    const std::int64_t out = (y_ * view_.out.width + tile.first) * pixel_size_;
    for (std::int64_t word = word_begin; word < word_end; ++word) {
      TileWord<Element, T> sums;
      begin(sums, word, out + word * kWordSize<Element>);
      view_.multiple == 1 ? add_word(sums, word, tile) : add_channels(sums, word, tile);
      finish(sums, out + word * kWordSize<Element>);
    }
  }

 private:
  template <int T>
  [[gnu::always_inline]] void begin(TileWord<Element, T>& sums, std::int64_t word,
                                    std::int64_t out) const {
    if (operands_.addend != nullptr) return sums.load(operands_.addend + out, tile_step_);
    for (int d = 0; d < kDepth<Element>; ++d) {
      const std::int64_t channel = word * kDepth<Element> + d;
      const bool has_bias = operands_.bias != nullptr && channel < view_.out.channels;
      const __m512 bias = _mm512_set1_ps(has_bias ? operands_.bias[channel] : 0);
      sums.for_each([&](int, int, Values<Element>& sum) { sum.of[d] = bias; });
    }
  }

  /// Input and output have the same channels.
  template <int T>
  [[gnu::always_inline]] void add_word(TileWord<Element, T>& sums, std::int64_t word,
                                       const DepthwiseTile& tile) const {
    const Element* const in = operands_.in + word * kWordSize<Element>;
    const float* const weights = weights_ + word * view_.kernel_taps * kDepth<Element>;
    for_each_tap(
        view_, y_, tile, [&](const DepthwiseTap& tap) __attribute__((always_inline)) {
          __m512 weight[kDepth<Element>];
          for (int d = 0; d < kDepth<Element>; ++d) {
            weight[d] = _mm512_set1_ps(weights[tap.weight * kDepth<Element> + d]);
          }
          const Element* const from = in + tap.in;
          sums.for_each([&](int t, int v, Values<Element>& sum) __attribute__((always_inline)) {
            const Values<Element> x =
                load_words(from + t * view_.in_step + v * kWordSize<Element> / kVectors);
            for (int d = 0; d < kDepth<Element>; ++d) {
              sum.of[d] = _mm512_fmadd_ps(x.of[d], weight[d], sum.of[d]);
            }
          });
        });
  }

  /// Channels of the layer's input have several of its output.
  template <int T>
  [[gnu::noinline]] void add_channels(TileWord<Element, T>& sums, std::int64_t word,
                                      const DepthwiseTile& tile) const {
    for (int d = 0; d < kDepth<Element>; ++d) {
      const std::int64_t channel = word * kDepth<Element> + d;
      if (channel >= view_.out.channels) continue;
      const std::int64_t first = view_.backward ? channel * view_.multiple : channel;
      for (std::int64_t i = first; i < first + (view_.backward ? view_.multiple : 1); ++i) {
        const std::int64_t source = view_.backward ? i : i / view_.multiple;
        const float* const weights = weights_ + i % kDepth<Element> +
                                     i / kDepth<Element> * view_.kernel_taps * kDepth<Element>;
        for_each_tap(view_, y_, tile, [&](const DepthwiseTap& tap) {
          const __m512 weight = _mm512_set1_ps(weights[tap.weight * kDepth<Element>]);
          sums.for_each([&](int t, int v, Values<Element>& sum) {
            const Element* const pixel = operands_.in + tap.in + t * view_.in_step;
            sum.of[d] = _mm512_fmadd_ps(load_channel(pixel, source, v), weight, sum.of[d]);
          });
        });
      }
    }
  }

  template <int T>
  [[gnu::always_inline]] void finish(TileWord<Element, T>& sums, std::int64_t out) const {
    sums.for_each([&](int t, int v, Values<Element>& sum) {
      if (operands_.relu) {
        for (__m512& value : sum.of) value = _mm512_max_ps(_mm512_setzero_ps(), value);
      }
      store_words(operands_.out + out + t * tile_step_ + v * kWordSize<Element> / kVectors, sum);
    });
  }

  const DepthwiseView& view_;
  const GatherOperands<Element>& operands_;
  const float* weights_;
  std::int64_t y_, pixel_size_, tile_step_;
};

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

/// Words are computed in parts whose rows of a kernel's height fit into the L2 cache.
template <class Element>
void depthwise_sum(const DepthwiseView& view, const GatherOperands<Element>& operands,
                   std::int64_t row_begin, std::int64_t row_end) {
  constexpr std::int64_t kCache = 1 << 19;
  const std::int64_t count = words<Element>(view.out.channels);
  const std::int64_t rows =
      row_end > row_begin ? view.row_begin[row_begin + 1] - view.row_begin[row_begin] + 1 : 1;
  const std::int64_t word_bytes =
      rows * view.in.width * kWordSize<Element> * static_cast<std::int64_t>(sizeof(Element));
  const std::int64_t step = larger(8, kCache / word_bytes);
  for (std::int64_t word = 0; word < count; word += step) {
    const std::int64_t word_end = smaller(word + step, count);
    for (std::int64_t y = row_begin; y < row_end; ++y) {
      const DepthwiseRow<Element> row(view, operands, y);
      for (std::int64_t i = 0; i < view.tile_count; ++i) {
        with_columns(view.tiles[i].count,
                     [&]<int T>() { row.template compute<T>(view.tiles[i], word, word_end); });
      }
    }
  }
}

/// Products of a word of T gradients and its inputs, added to the lanes of its weights.
template <class Element, int T>
void add_tile_products(const DepthwiseView& view, std::int64_t y, const DepthwiseTile& tile,
                       std::int64_t word, const Element* in, const Element* gradient,
                       std::int64_t gradient_step, float* lanes) {
  TileWord<Element, T> g;
  g.load(gradient, gradient_step);
  for_each_tap(
      view, y, tile, [&](const DepthwiseTap& tap) __attribute__((always_inline)) {
        __m512 sums[kVectors][kDepth<Element>];
        g.for_each([&](int t, int v, const Values<Element>& dy) __attribute__((always_inline)) {
          const Element* const pixel = in + tap.in + t * view.in_step;
          Values<Element> x;
          if (view.multiple == 1) {
            x = load_words(pixel + (word * kVectors + v) * (kWordSize<Element> / kVectors));
          } else {
            for (int d = 0; d < kDepth<Element>; ++d) {
              const std::int64_t channel = (word * kDepth<Element> + d) / view.multiple;
              x.of[d] = load_channel(pixel, channel, v);
            }
          }
          for (int d = 0; d < kDepth<Element>; ++d) {
            sums[v][d] = t == 0 ? _mm512_mul_ps(x.of[d], dy.of[d])
                                : _mm512_fmadd_ps(x.of[d], dy.of[d], sums[v][d]);
          }
        });
        for (int d = 0; d < kDepth<Element>; ++d) {
          float* const to = lanes + (tap.weight * kDepth<Element> + d) * kLanes;
          _mm512_storeu_ps(
              to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_add_ps(sums[0][d], sums[1][d])));
        }
      });
}

/// Adds the lanes to the sums, and clears them.
inline void flush_lanes(std::int64_t count, float* lanes, float* sums) {
  for (std::int64_t i = 0; i < count; ++i, lanes += kLanes) {
    sums[i] += _mm512_reduce_add_ps(_mm512_loadu_ps(lanes));
    _mm512_storeu_ps(lanes, _mm512_setzero_ps());
  }
}

template <class Element>
void add_depthwise_gradient(const DepthwiseView& view, const DepthwiseBand& band, const Element* in,
                            const Element* gradient, float* lanes, float* sums) {
  const std::int64_t of_word = view.kernel_taps * kDepth<Element>;
  const std::int64_t weights = (band.word_end - band.word_begin) * of_word;
  const std::int64_t pixel_size = words<Element>(view.out.channels) * kWordSize<Element>;
  __builtin_memset(lanes, 0, sizeof(float) * kLanes * weights);
  sums += band.word_begin * of_word;
  std::int64_t pixels = 0;
  for (std::int64_t block = band.block_begin; block < band.block_end; ++block) {
    const Element* const in_block = in + block * view.in.block_size<Element>();
    for (std::int64_t y = 0; y < view.out.height; ++y) {
      const Element* const row =
          gradient + (block * view.out.height + y) * view.out.width * pixel_size;
      for (std::int64_t i = 0; i < view.tile_count; ++i) {
        const DepthwiseTile& tile = view.tiles[i];
        with_columns(tile.count, [&]<int T>() {
          for (std::int64_t word = band.word_begin; word < band.word_end; ++word) {
            add_tile_products<Element, T>(view, y, tile, word, in_block,
                                          row + tile.first * pixel_size + word * kWordSize<Element>,
                                          view.tile_step * pixel_size,
                                          lanes + (word - band.word_begin) * of_word * kLanes);
          }
        });
      }
      pixels += view.out.width;
      if (pixels < kLanePixels) continue;
      flush_lanes(weights, lanes, sums);
      pixels = 0;
    }
  }
  flush_lanes(weights, lanes, sums);
}

}  // namespace mnist_train::cpu_kernels::avx512
