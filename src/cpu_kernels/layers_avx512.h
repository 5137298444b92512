#pragma once

// Only for sources compiled with AVX-512; see lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"

/// Layers other than convolutions and activations.
namespace mnist_train::cpu_kernels::avx512 {

// Batch norm, sums, ReLU gradients and dropout: passes over the pixels of a range.

/// Position of a vector of words in a range. `v` is the half of the images that it holds.
struct Position {
  std::int64_t offset, channel, pixel;
  int v;
  __mmask16 mask;  // excludes padding images
};

/// Calls `action(position)` for all vectors of a range.
template <class Element, class Action>
[[gnu::always_inline]] inline void for_each_vector(const PixelRange& range, const Action& action) {
  const std::int64_t count = words<Element>(range.channels);
  const __mmask16 masks[kVectors] = {first_lanes(range.images), first_lanes(range.images - kLanes)};
  std::int64_t offset = 0;
  for (std::int64_t pixel = 0; pixel < range.pixels; ++pixel) {
    for (std::int64_t word = 0; word < count; ++word) {
      for (int v = 0; v < kVectors; ++v, offset += kVectorSize<Element>) {
        action(Position{offset, word * kDepth<Element>, pixel, v, masks[v]});
      }
    }
  }
}

inline constexpr std::int64_t kSumPixels = 64;  // pixels that are summed in fp32

/// Adds the sums of W words over up to kSumPixels pixels, starting at this pixel and channel.
template <class Element, int Count, int W, class Add>
void sum_words(const PixelRange& range, std::int64_t pixel, std::int64_t channel, const Add& add,
               double* sums) {
  const std::int64_t padded = range.padded_channels<Element>();
  const std::int64_t end = smaller(pixel + kSumPixels, range.pixels);
  const __mmask16 masks[kVectors] = {first_lanes(range.images), first_lanes(range.images - kLanes)};
  Values<Element> lanes[W][Count] = {};
  for (; pixel < end; ++pixel) {
    const std::int64_t offset = (pixel * padded + channel) * kImages;
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        add(Position{offset + (w * kVectors + v) * kVectorSize<Element>,
                     channel + w * kDepth<Element>, pixel, v, masks[v]},
            lanes[w]);
      }
    }
  }
  for (int w = 0; w < W; ++w) {
    for (int d = 0; d < kDepth<Element>; ++d) {
      for (int i = 0; i < Count; ++i) {
        sums[i * padded + channel + w * kDepth<Element> + d] +=
            static_cast<double>(_mm512_reduce_add_ps(lanes[w][i].v[d]));
      }
    }
  }
}

/// Adds `Count` sums per channel; `add(position, sums)` accumulates one vector of words.
template <class Element, int Count, class Add>
void sum_channels(const PixelRange& range, const Add& add, double* sums) {
  constexpr int kWords = 4;
  const std::int64_t padded = range.padded_channels<Element>();
  for (std::int64_t pixel = 0; pixel < range.pixels; pixel += kSumPixels) {
    std::int64_t channel = 0;
    for (; channel + kWords * kDepth<Element> <= padded; channel += kWords * kDepth<Element>) {
      sum_words<Element, Count, kWords>(range, pixel, channel, add, sums);
    }
    for (; channel < padded; channel += kDepth<Element>) {
      sum_words<Element, Count, 1>(range, pixel, channel, add, sums);
    }
  }
}

/// Returns x minus its channels' means, with zeros in lanes outside the mask.
template <class Element>
[[gnu::always_inline]] inline Values<Element> centre(const Values<Element>& x, const float* mean,
                                                     __mmask16 mask = 0xffff) {
  return map([&](__m512 a, __m512 b) { return _mm512_maskz_sub_ps(mask, a, b); }, x,
             broadcast<Element>(mean));
}

template <class Element>
void add_statistics(const PixelRange& range, const Element* x, const float* shift, double* sums) {
  const auto add = [&](const Position& p, Values<Element>* to) __attribute__((always_inline)) {
    const Values<Element> centred = centre(load_words(x + p.offset), shift + p.channel, p.mask);
    to[0] = to[0] + centred;
    to[1] = multiply_add(centred, centred, to[1]);
  };
  sum_channels<Element, 2>(range, add, sums);
}

template <class Element>
void normalize(const PixelRange& range, const NormalizeOperands<Element>& operands) {
  const NormalizeOperands<Element> o = operands;
  const __m512 limit = _mm512_set1_ps(o.limit);
  for_each_vector<Element>(
      range, [&](const Position& p) __attribute__((always_inline)) {
        Values<Element> y = multiply_add(centre(load_words(o.x + p.offset), o.mean + p.channel),
                                         broadcast<Element>(o.scale + p.channel),
                                         broadcast<Element>(o.bias + p.channel));
        if (o.residual != nullptr) y = y + load_words(o.residual + p.offset);
        const auto clamp = [&](__m512 a) {
          return _mm512_min_ps(limit, _mm512_max_ps(_mm512_setzero_ps(), a));
        };
        if (o.relu) y = map(clamp, y);
        store_words(o.y + p.offset, y);
      });
}

/// Returns the mask's lanes in which 0 < y < limit or y is NaN.
inline __mmask16 relu_mask(__mmask16 mask, __m512 y, float limit) {
  const __mmask16 positive = _mm512_mask_cmp_ps_mask(mask, y, _mm512_setzero_ps(), _CMP_NLE_UQ);
  return _mm512_mask_cmp_ps_mask(positive, y, _mm512_set1_ps(limit), _CMP_NGE_UQ);
}

/// Loads a gradient, with zeros for padding images and, unless y is null, outside of `relu_mask`.
template <class Element>
[[gnu::always_inline]] inline Values<Element> load_gradient(const Element* dy, const Element* y,
                                                            const Position& p,
                                                            float limit = kNoLimit) {
  const Values<Element> g = load_words(dy + p.offset);
  if (y == nullptr) return map([&](__m512 a) { return _mm512_maskz_mov_ps(p.mask, a); }, g);
  return map(
      [&](__m512 a, __m512 b) { return _mm512_maskz_mov_ps(relu_mask(p.mask, b, limit), a); }, g,
      load_words(y + p.offset));
}

template <class Element>
void add_gradient_sums(const PixelRange& range, const Element* dy, const Element* y,
                       const Element* x, const float* mean, float limit, double* sums) {
  if (x == nullptr) {
    const auto add = [&](const Position& p, Values<Element>* to) __attribute__((always_inline)) {
      to[0] = to[0] + load_gradient(dy, y, p, limit);
    };
    return sum_channels<Element, 1>(range, add, sums);
  }
  const auto add = [&](const Position& p, Values<Element>* to) __attribute__((always_inline)) {
    const Values<Element> g = load_gradient(dy, y, p, limit);
    to[0] = to[0] + g;
    to[1] = multiply_add(g, centre(load_words(x + p.offset), mean + p.channel, p.mask), to[1]);
  };
  sum_channels<Element, 2>(range, add, sums);
}

template <class Element>
void normalize_gradient(const PixelRange& range,
                        const NormalizeGradientOperands<Element>& operands) {
  const NormalizeGradientOperands<Element> o = operands;
  for_each_vector<Element>(
      range, [&](const Position& p) __attribute__((always_inline)) {
        const Values<Element> g = load_gradient(o.dy, o.y, p, o.limit);
        const Values<Element> rest = multiply_add(
            centre(load_words(o.x + p.offset), o.mean + p.channel),
            broadcast<Element>(o.slope + p.channel), broadcast<Element>(o.offset + p.channel));
        const auto add = [&](__m512 a, __m512 scale, __m512 b) {
          return _mm512_maskz_fmadd_ps(p.mask, a, scale, b);
        };
        if (o.residual != nullptr) store_words(o.residual + p.offset, g);
        store_words(o.dx + p.offset, map(add, g, broadcast<Element>(o.scale + p.channel), rest));
      });
}

template <class Element>
void add(const PixelRange& range, const Element* a, const Element* b, bool relu, Element* y) {
  for_each_vector<Element>(
      range, [&](const Position& p) __attribute__((always_inline)) {
        Values<Element> sum = load_words(a + p.offset) + load_words(b + p.offset);
        if (relu) sum = map([](__m512 x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }, sum);
        store_words(y + p.offset, sum);
      });
}

template <class Element>
void relu_gradient(const PixelRange& range, const Element* dy, const Element* y, Element* dx) {
  for_each_vector<Element>(
      range, [&](const Position& p) __attribute__((always_inline)) {
        store_words(dx + p.offset, load_gradient(dy, y, p));
      });
}

inline __m512i hash(__m512i bits) {
  bits = _mm512_xor_si512(bits, _mm512_srli_epi32(bits, 16));
  bits = _mm512_mullo_epi32(bits, _mm512_set1_epi32(static_cast<int>(kHashFactor1)));
  bits = _mm512_xor_si512(bits, _mm512_srli_epi32(bits, 15));
  bits = _mm512_mullo_epi32(bits, _mm512_set1_epi32(static_cast<int>(kHashFactor2)));
  return _mm512_xor_si512(bits, _mm512_srli_epi32(bits, 16));
}

template <class Element>
void drop(const PixelRange& range, const Dropout& dropout, const Element* x, Element* y) {
  const __m512i limit = _mm512_set1_epi32(static_cast<int>(dropout.limit));
  const __mmask16 all = dropout.limit >> 32 != 0 ? 0 : 0xffff;
  const __m512 scale = _mm512_set1_ps(dropout.scale);
  for_each_vector<Element>(
      range, [&](const Position& p) __attribute__((always_inline)) {
        Values<Element> values = load_words(x + p.offset);
        for (int d = 0; d < kDepth<Element>; ++d) {
          const std::int64_t index = (p.channel + d) * range.pixels + p.pixel;
          const auto key = static_cast<int>(static_cast<std::uint32_t>(index) * kIndexFactor);
          const __m512i bits = _mm512_add_epi32(_mm512_set1_epi32(key),
                                                _mm512_loadu_si512(dropout.low + p.v * kLanes));
          const __m512i hashed =
              _mm512_xor_si512(hash(bits), _mm512_loadu_si512(dropout.high + p.v * kLanes));
          values.v[d] = _mm512_maskz_mul_ps(_mm512_mask_cmpge_epu32_mask(all, hashed, limit),
                                            values.v[d], scale);
        }
        store_words(y + p.offset, values);
      });
}

// Pooling.

/// Calls `action(offset, offset in the pixel, first tap, end of taps)` for each vector of words.
template <class Element, class Action>
[[gnu::always_inline]] inline void for_each_window(const PoolingView& view, const Action& action) {
  const PoolingView v = view;  // a local copy, which vector stores cannot modify
  for (std::int64_t pixel = 0; pixel < v.pixels; ++pixel) {
    const WindowTap* const taps = v.taps + v.begin[pixel];
    const WindowTap* const end = v.taps + v.begin[pixel + 1];
    for (std::int64_t offset = 0; offset < v.pixel_size; offset += kVectorSize<Element>) {
      action(pixel * v.pixel_size + offset, offset, taps, end);
    }
  }
}

template <class Element>
void max_pool(const PoolingView& view, const Element* x, bool relu, Element* y,
              std::uint8_t* argmax) {
  const __m512 lowest = relu ? _mm512_setzero_ps() : _mm512_set1_ps(-__builtin_inff());
  const auto choose = [&](std::int64_t out, std::int64_t offset, const WindowTap* tap,
                          const WindowTap* end) __attribute__((always_inline)) {
    Values<Element> max;
    __m512i best[kDepth<Element>];
    for (int d = 0; d < kDepth<Element>; ++d) {
      max.v[d] = lowest;
      best[d] = _mm512_set1_epi32(relu ? 255 : 0);
    }
    for (; tap < end; ++tap) {
      const Values<Element> values = load_words(x + tap->offset + offset);
      for (int d = 0; d < kDepth<Element>; ++d) {
        // A NaN counts as the maximum.
        const __mmask16 above = _mm512_cmp_ps_mask(values.v[d], max.v[d], _CMP_NLE_UQ) &
                                _mm512_cmp_ps_mask(max.v[d], max.v[d], _CMP_ORD_Q);
        max.v[d] = _mm512_mask_mov_ps(max.v[d], above, values.v[d]);
        best[d] = _mm512_mask_set1_epi32(best[d], above, tap->position);
      }
    }
    store_words(y + out, max);
    for (int d = 0; d < kDepth<Element>; ++d) {
      _mm512_mask_cvtepi32_storeu_epi8(argmax + out + d * kLanes, 0xffff, best[d]);
    }
  };
  for_each_window<Element>(view, choose);
}

template <class Element>
void max_pool_gradient(const PoolingView& view, const Element* dy, const std::uint8_t* argmax,
                       Element* dx) {
  const auto sum = [&](std::int64_t in, std::int64_t offset, const WindowTap* tap,
                       const WindowTap* end) __attribute__((always_inline)) {
    Values<Element> sums = {};
    for (; tap < end; ++tap) {
      const std::int64_t from = tap->offset + offset;
      const Values<Element> g = load_words(dy + from);
      for (int d = 0; d < kDepth<Element>; ++d) {
        const __m128i positions =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(argmax + from + d * kLanes));
        const __mmask16 mask =
            _mm_cmpeq_epi8_mask(positions, _mm_set1_epi8(static_cast<char>(tap->position)));
        sums.v[d] = _mm512_mask_add_ps(sums.v[d], mask, sums.v[d], g.v[d]);
      }
    }
    store_words(dx + in, sums);
  };
  for_each_window<Element>(view, sum);
}

template <class Element>
void average_pool(const PoolingView& view, const Element* x, Element* y) {
  const auto sum = [&](std::int64_t out, std::int64_t offset, const WindowTap* tap,
                       const WindowTap* end) __attribute__((always_inline)) {
    const float scale = tap < end ? tap->scale : 0;
    Values<Element> sums = {};
    for (; tap < end; ++tap) sums = sums + load_words(x + tap->offset + offset);
    for (__m512& value : sums.v) value = value * scale;
    store_words(y + out, sums);
  };
  for_each_window<Element>(view, sum);
}

template <class Element>
void average_pool_gradient(const PoolingView& view, const Element* dy, Element* dx) {
  const auto sum = [&](std::int64_t in, std::int64_t offset, const WindowTap* tap,
                       const WindowTap* end) __attribute__((always_inline)) {
    Values<Element> sums = {};
    for (; tap < end; ++tap) {
      const __m512 scale = _mm512_set1_ps(tap->scale);
      const Values<Element> g = load_words(dy + tap->offset + offset);
      for (int d = 0; d < kDepth<Element>; ++d) {
        sums.v[d] = _mm512_fmadd_ps(g.v[d], scale, sums.v[d]);
      }
    }
    store_words(dx + in, sums);
  };
  for_each_window<Element>(view, sum);
}

// Conversion to and from plain images, and flattening.

/// Up to 16 words of an image: a pixel's channels or, in a single-channel image, adjacent pixels.
struct PlainRun {
  std::int64_t plain, block;  // offsets
  std::int64_t elements, words;
};

/// Calls `action(run)` for all words of an image.
template <class Element, class Action>
void for_each_run(const ValueShape& shape, const Action& action) {
  const bool is_gray = shape.channels == 1;
  const std::int64_t rows = is_gray ? 1 : shape.pixels();
  const std::int64_t elements = is_gray ? shape.pixels() : shape.channels;
  const std::int64_t run_size = is_gray ? kLanes : kLanes * kDepth<Element>;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t begin = 0; begin < elements; begin += run_size) {
      const std::int64_t count = smaller(run_size, elements - begin);
      action(PlainRun{
          row * elements + begin,
          row * shape.pixel_size<Element>() + begin * (is_gray ? kWordSize<Element> : kImages),
          count, is_gray ? count : words<Element>(count)});
    }
  }
}

template <class Element>
void from_plain(const ValueShape& shape, const Element* images, std::int64_t count,
                Element* block) {
  for_each_run<Element>(shape, [&](const PlainRun& run) {
    for (int v = 0; v < kVectors; ++v) {
      Block rows;
      for (std::int64_t i = 0; i < kLanes; ++i) {
        const Element* const from = images + (v * kLanes + i) * shape.elements() + run.plain;
        rows[i] = v * kLanes + i >= count ? _mm512_setzero_si512()
                  : shape.channels == 1   ? load_columns(from, 0, run.elements, 1)
                                          : load_channels(from, run.elements);
      }
      transpose(rows);
      Element* const to = block + run.block + v * kVectorSize<Element>;
      for (std::int64_t i = 0; i < run.words; ++i) {
        _mm512_storeu_si512(to + i * kWordSize<Element>, rows[i]);
      }
    }
  });
}

template <class Element>
void to_plain(const ValueShape& shape, const Element* block, std::int64_t count, Element* images) {
  for_each_run<Element>(shape, [&](const PlainRun& run) {
    for (int v = 0; v < kVectors; ++v) {
      Block rows = {};
      const Element* const from = block + run.block + v * kVectorSize<Element>;
      for (std::int64_t i = 0; i < run.words; ++i) {
        rows[i] = _mm512_loadu_si512(from + i * kWordSize<Element>);
      }
      transpose(rows);
      for (std::int64_t i = 0; i < smaller(kLanes, count - v * kLanes); ++i) {
        Element* const to = images + (v * kLanes + i) * shape.elements() + run.plain;
        shape.channels == 1 ? store_columns(rows[i], to, run.elements)
                            : store_channels(rows[i], to, run.elements);
      }
    }
  });
}

/// Copies a channel of all images from one word to another. Writing the first channel of a word
/// zeroes its second channel.
inline void copy_channel(const float* from, std::int64_t, float* to, std::int64_t) {
  __builtin_memcpy(to, from, sizeof(float) * kImages);
}
inline void copy_channel(const Bf16Bits* from, std::int64_t from_channel, Bf16Bits* to,
                         std::int64_t to_channel) {
  for (int v = 0; v < kVectors; ++v, from += 2 * kLanes, to += 2 * kLanes) {
    __m512i words = _mm512_loadu_si512(from);
    if (from_channel != to_channel) words = _mm512_rol_epi32(words, 16);
    to_channel == 0 ? _mm512_storeu_si512(to, _mm512_maskz_mov_epi16(0x55555555, words))
                    : _mm512_mask_storeu_epi16(to, 0xaaaaaaaa, words);
  }
}

/// Reorders images like PyTorch's flatten or, with `Inverse`, does the inverse. In a flattened
/// vector, a channel of a pixel has the index `channel * pixels + pixel`. Writes are sequential.
template <class Element, bool Inverse>
void reorder(const ValueShape& shape, const Element* from, Element* to) {
  constexpr std::int64_t kD = kDepth<Element>;
  const std::int64_t pixels = shape.pixels();
  for (std::int64_t i = 0; i < (Inverse ? pixels : shape.channels); ++i) {
    for (std::int64_t j = 0; j < (Inverse ? shape.channels : pixels); ++j) {
      const std::int64_t channel = Inverse ? j : i;
      const std::int64_t pixel = Inverse ? i : j;
      const std::int64_t index = channel * pixels + pixel;
      const std::int64_t vector = index / kD * kWordSize<Element>;
      const std::int64_t image =
          (pixel * words<Element>(shape.channels) + channel / kD) * kWordSize<Element>;
      if constexpr (Inverse) {
        copy_channel(from + vector, index % kD, to + image, channel % kD);
      } else {
        copy_channel(from + image, channel % kD, to + vector, index % kD);
      }
    }
  }
}

}  // namespace mnist_train::cpu_kernels::avx512
