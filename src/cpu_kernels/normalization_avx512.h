#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"
#include "cpu_kernels/layer_kernels.h"

/// Batch norm, residual sums, gates and dropout: passes over pixels with constants or sums of each
/// channel.
namespace mnist_train::cpu_kernels::avx512 {

/// Elements of a vector of words.
template <class Element>
inline constexpr std::int64_t kVectorSize = kWordSize<Element> / kVectors;

/// Calls `action(offset of a vector of words, its first channel, mask of the images that count)`
/// for all of the range.
template <class Element, class Action>
[[gnu::always_inline]] inline void for_each_vector(const PixelRange& range, const Action& action) {
  const std::int64_t count = words<Element>(range.channels);
  const __mmask16 masks[kVectors] = {first_lanes(range.images), first_lanes(range.images - kLanes)};
  std::int64_t offset = 0;
  for (std::int64_t pixel = 0; pixel < range.pixels; ++pixel) {
    for (std::int64_t word = 0; word < count; ++word) {
      for (int v = 0; v < kVectors; ++v, offset += kVectorSize<Element>) {
        action(offset, word * kDepth<Element>, masks[v]);
      }
    }
  }
}

/// `Count` sums of a channel, of 16 images each.
template <int Count>
struct ChannelSums {
  __m512 of[Count];
};

/// Adds sums of W words, from the first of pixels that are `pixel_step` elements apart.
template <class Element, int Count, int W, class Add>
void sum_words(std::int64_t pixels, std::int64_t pixel_step, std::int64_t images,
               std::int64_t channel, const Add& add, double* sums, std::int64_t sums_step) {
  ChannelSums<Count> lanes[W][kDepth<Element>];
  for (auto& word : lanes) {
    for (auto& of_channel : word) {
      for (__m512& sum : of_channel.of) sum = _mm512_setzero_ps();
    }
  }
  const __mmask16 masks[kVectors] = {first_lanes(images), first_lanes(images - kLanes)};
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
    const std::int64_t offset = pixel * pixel_step + channel * kImages;
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        add(offset + (w * kVectors + v) * kVectorSize<Element>, channel + w * kDepth<Element>,
            masks[v], lanes[w]);
      }
    }
  }
  for (int w = 0; w < W; ++w) {
    for (int d = 0; d < kDepth<Element>; ++d) {
      for (int i = 0; i < Count; ++i) {
        sums[i * sums_step + channel + w * kDepth<Element> + d] +=
            static_cast<double>(_mm512_reduce_add_ps(lanes[w][d].of[i]));
      }
    }
  }
}

/// Adds `Count` sums per channel of what `add(offset, channel, mask, sums)` adds per vector of
/// words. Lanes sum over few pixels in fp32.
template <class Element, int Count, class Add>
void sum_channels(const PixelRange& range, const Add& add, double* sums) {
  constexpr std::int64_t kPixels = 64;
  constexpr int kWords = 4;
  const std::int64_t padded = range.padded_channels<Element>();
  const std::int64_t pixel_step = padded * kImages;
  for (std::int64_t pixel = 0; pixel < range.pixels; pixel += kPixels) {
    const std::int64_t pixels = smaller(kPixels, range.pixels - pixel);
    const auto add_here = [&](std::int64_t offset, std::int64_t channel, __mmask16 mask,
                              ChannelSums<Count> * to) __attribute__((always_inline)) {
      add(pixel * pixel_step + offset, channel, mask, to);
    };
    std::int64_t channel = 0;
    for (; channel + kWords * kDepth<Element> <= padded; channel += kWords * kDepth<Element>) {
      sum_words<Element, Count, kWords>(pixels, pixel_step, range.images, channel, add_here, sums,
                                        padded);
    }
    for (; channel < padded; channel += kDepth<Element>) {
      sum_words<Element, Count, 1>(pixels, pixel_step, range.images, channel, add_here, sums,
                                   padded);
    }
  }
}

template <class Element>
void add_statistics(const PixelRange& range, const Element* x, const float* shift, double* sums) {
  sum_channels<Element, 2>(
      range,
      [&](std::int64_t offset, std::int64_t channel, __mmask16 mask, ChannelSums<2> * to)
          __attribute__((always_inline)) {
            const Values<Element> values = load_words(x + offset);
            for (int d = 0; d < kDepth<Element>; ++d) {
              const __m512 difference =
                  _mm512_maskz_sub_ps(mask, values.of[d], _mm512_set1_ps(shift[channel + d]));
              to[d].of[0] = _mm512_add_ps(to[d].of[0], difference);
              to[d].of[1] = _mm512_fmadd_ps(difference, difference, to[d].of[1]);
            }
          },
      sums);
}

template <class Element>
void normalize(const PixelRange& range, const NormalizeOperands<Element>& operands) {
  const NormalizeOperands<Element> o = operands;
  const __m512 limit = _mm512_set1_ps(o.limit);
  for_each_vector<Element>(
      range, [&](std::int64_t offset, std::int64_t channel,
                 __mmask16) __attribute__((always_inline)) {
        Values<Element> values = load_words(o.x + offset);
        for (int d = 0; d < kDepth<Element>; ++d) {
          const __m512 centred = _mm512_sub_ps(values.of[d], _mm512_set1_ps(o.mean[channel + d]));
          values.of[d] = _mm512_fmadd_ps(centred, _mm512_set1_ps(o.scale[channel + d]),
                                         _mm512_set1_ps(o.bias[channel + d]));
        }
        if (o.residual != nullptr) {
          const Values<Element> added = load_words(o.residual + offset);
          for (int d = 0; d < kDepth<Element>; ++d) {
            values.of[d] = _mm512_add_ps(values.of[d], added.of[d]);
          }
        }
        if (o.relu) {
          for (__m512& value : values.of) {
            value = _mm512_min_ps(limit, _mm512_max_ps(_mm512_setzero_ps(), value));
          }
        }
        store_words(o.y + offset, values);
      });
}

/// Loads a gradient, zero for lanes whose output is not between 0 and the limit.
template <class Element>
[[gnu::always_inline]] inline Values<Element> load_gradient(const Element* dy, const Element* y,
                                                            std::int64_t offset, __mmask16 mask,
                                                            float limit = kNoLimit) {
  Values<Element> g = load_words(dy + offset);
  if (y == nullptr) {
    for (__m512& value : g.of) value = _mm512_maskz_mov_ps(mask, value);
    return g;
  }
  const Values<Element> outputs = load_words(y + offset);
  for (int d = 0; d < kDepth<Element>; ++d) {
    const __mmask16 positive =
        _mm512_mask_cmp_ps_mask(mask, outputs.of[d], _mm512_setzero_ps(), _CMP_NLE_UQ);
    g.of[d] = _mm512_maskz_mov_ps(
        _mm512_mask_cmp_ps_mask(positive, outputs.of[d], _mm512_set1_ps(limit), _CMP_NGE_UQ),
        g.of[d]);
  }
  return g;
}

template <class Element>
void add_gradient_sums(const PixelRange& range, const Element* dy, const Element* y,
                       const Element* x, const float* mean, float limit, double* sums) {
  if (x == nullptr) {
    sum_channels<Element, 1>(
        range,
        [&](std::int64_t offset, std::int64_t, __mmask16 mask, ChannelSums<1> * to)
            __attribute__((always_inline)) {
              const Values<Element> g = load_gradient(dy, y, offset, mask, limit);
              for (int d = 0; d < kDepth<Element>; ++d) {
                to[d].of[0] = _mm512_add_ps(to[d].of[0], g.of[d]);
              }
            },
        sums);
    return;
  }
  sum_channels<Element, 2>(
      range,
      [&](std::int64_t offset, std::int64_t channel, __mmask16 mask, ChannelSums<2> * to)
          __attribute__((always_inline)) {
            const Values<Element> g = load_gradient(dy, y, offset, mask, limit);
            const Values<Element> values = load_words(x + offset);
            for (int d = 0; d < kDepth<Element>; ++d) {
              const __m512 centred =
                  _mm512_maskz_sub_ps(mask, values.of[d], _mm512_set1_ps(mean[channel + d]));
              to[d].of[0] = _mm512_add_ps(to[d].of[0], g.of[d]);
              to[d].of[1] = _mm512_fmadd_ps(g.of[d], centred, to[d].of[1]);
            }
          },
      sums);
}

template <class Element>
void normalize_gradient(const PixelRange& range,
                        const NormalizeGradientOperands<Element>& operands) {
  const NormalizeGradientOperands<Element> o = operands;
  for_each_vector<Element>(
      range, [&](std::int64_t offset, std::int64_t channel,
                 __mmask16 mask) __attribute__((always_inline)) {
        const Values<Element> g = load_gradient(o.dy, o.y, offset, mask, o.limit);
        Values<Element> values = load_words(o.x + offset);
        for (int d = 0; d < kDepth<Element>; ++d) {
          const __m512 centred = _mm512_sub_ps(values.of[d], _mm512_set1_ps(o.mean[channel + d]));
          const __m512 rest = _mm512_fmadd_ps(centred, _mm512_set1_ps(o.slope[channel + d]),
                                              _mm512_set1_ps(o.offset[channel + d]));
          values.of[d] =
              _mm512_maskz_fmadd_ps(mask, g.of[d], _mm512_set1_ps(o.scale[channel + d]), rest);
        }
        if (o.residual != nullptr) store_words(o.residual + offset, g);
        store_words(o.dx + offset, values);
      });
}

template <class Element>
void add(const PixelRange& range, const Element* a, const Element* b, bool relu, Element* y) {
  for_each_vector<Element>(
      range, [&](std::int64_t offset, std::int64_t, __mmask16) __attribute__((always_inline)) {
        Values<Element> values = load_words(a + offset);
        const Values<Element> added = load_words(b + offset);
        for (int d = 0; d < kDepth<Element>; ++d) {
          values.of[d] = _mm512_add_ps(values.of[d], added.of[d]);
          if (relu) values.of[d] = _mm512_max_ps(_mm512_setzero_ps(), values.of[d]);
        }
        store_words(y + offset, values);
      });
}

template <class Element>
void relu_gradient(const PixelRange& range, const Element* dy, const Element* y, Element* dx) {
  for_each_vector<Element>(
      range, [&](std::int64_t offset, std::int64_t, __mmask16 mask) __attribute__((always_inline)) {
        store_words(dx + offset, load_gradient(dy, y, offset, mask));
      });
}

template <class Element>
void gate(const PixelRange& range, const Element* x, const Element* gate, bool is_pixel,
          Element* y) {
  const std::int64_t pixel_size = words<Element>(range.channels) * kWordSize<Element>;
  for (std::int64_t pixel = 0; pixel < range.pixels; ++pixel, x += pixel_size, y += pixel_size) {
    for (std::int64_t at = 0; at < pixel_size; at += kVectorSize<Element>) {
      Values<Element> values = load_words(x + at);
      const Values<Element> factors = load_words(gate + at);
      for (int d = 0; d < kDepth<Element>; ++d) {
        values.of[d] = _mm512_mul_ps(values.of[d], factors.of[d]);
      }
      store_words(y + at, values);
    }
    if (!is_pixel) gate += pixel_size;
  }
}

/// Sums few pixels at a time, as `sum_channels` does.
template <class Element>
void gate_gradient(const PixelRange& range, const Element* dy, const Element* x, Element* gate) {
  constexpr std::int64_t kPixels = 32;
  const std::int64_t pixel_size = words<Element>(range.channels) * kWordSize<Element>;
  for (std::int64_t at = 0; at < pixel_size; at += kVectorSize<Element>) {
    Values<Element> sums;
    for (__m512& sum : sums.of) sum = _mm512_setzero_ps();
    for (std::int64_t begin = 0; begin < range.pixels; begin += kPixels) {
      Values<Element> part;
      for (__m512& sum : part.of) sum = _mm512_setzero_ps();
      for (std::int64_t i = begin; i < smaller(begin + kPixels, range.pixels); ++i) {
        const Values<Element> g = load_words(dy + i * pixel_size + at);
        const Values<Element> values = load_words(x + i * pixel_size + at);
        for (int d = 0; d < kDepth<Element>; ++d) {
          part.of[d] = _mm512_fmadd_ps(g.of[d], values.of[d], part.of[d]);
        }
      }
      for (int d = 0; d < kDepth<Element>; ++d) sums.of[d] = _mm512_add_ps(sums.of[d], part.of[d]);
    }
    store_words(gate + at, sums);
  }
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
  const std::int64_t count = words<Element>(range.channels);
  const __m512i limit = _mm512_set1_epi32(static_cast<int>(dropout.limit));
  const __mmask16 all = dropout.limit >> 32 != 0 ? 0 : 0xffff;
  const __m512 scale = _mm512_set1_ps(dropout.scale);
  std::int64_t offset = 0;
  for (std::int64_t pixel = 0; pixel < range.pixels; ++pixel) {
    for (std::int64_t word = 0; word < count; ++word) {
      const std::int64_t index = word * kDepth<Element> * range.pixels + pixel;
      for (int v = 0; v < kVectors; ++v, offset += kVectorSize<Element>) {
        Values<Element> values = load_words(x + offset);
        for (int d = 0; d < kDepth<Element>; ++d) {
          const auto place = static_cast<std::uint32_t>(index + d * range.pixels);
          const __m512i bits =
              _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(place * kIndexFactor)),
                               _mm512_loadu_si512(dropout.low + v * kLanes));
          const __m512i hashed =
              _mm512_xor_si512(hash(bits), _mm512_loadu_si512(dropout.high + v * kLanes));
          values.of[d] = _mm512_maskz_mul_ps(_mm512_mask_cmpge_epu32_mask(all, hashed, limit),
                                             values.of[d], scale);
        }
        store_words(y + offset, values);
      }
    }
  }
}

}  // namespace mnist_train::cpu_kernels::avx512
