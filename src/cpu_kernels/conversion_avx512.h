#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"
#include "cpu_kernels/layer_kernels.h"

namespace mnist_train::cpu_kernels::avx512 {

/// Calls `action(y, x, pixels)` for runs of up to 16 pixels of a row.
template <class Action>
void for_each_run(const ValueShape& shape, const Action& action) {
  for (std::int64_t y = 0; y < shape.height; ++y) {
    for (std::int64_t x = 0; x < shape.width; x += kLanes) {
      action(y, x, smaller(kLanes, shape.width - x));
    }
  }
}

// Pixels of a channel of one image, as fp32.

inline __m512i load_pixels(const float* from, std::int64_t stride, std::int64_t pixels) {
  if (stride == 1) return _mm512_maskz_loadu_epi32(first_lanes(pixels), from);
  alignas(64) float values[kLanes] = {};
  for (std::int64_t i = 0; i < pixels; ++i) values[i] = from[i * stride];
  return _mm512_load_si512(values);
}
inline __m512i load_pixels(const Bf16Bits* from, std::int64_t stride, std::int64_t pixels) {
  alignas(32) Bf16Bits values[kLanes] = {};
  for (std::int64_t i = 0; i < pixels; ++i) values[i] = from[i * stride];
  return _mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(values))), 16);
}
inline void store_pixels(__m512i pixels_of_image, std::int64_t stride, std::int64_t pixels,
                         float* to) {
  if (stride == 1) return _mm512_mask_storeu_epi32(to, first_lanes(pixels), pixels_of_image);
  alignas(64) float values[kLanes];
  _mm512_store_si512(values, pixels_of_image);
  for (std::int64_t i = 0; i < pixels; ++i) to[i * stride] = values[i];
}
inline void store_pixels(__m512i pixels_of_image, std::int64_t stride, std::int64_t pixels,
                         Bf16Bits* to) {
  alignas(32) Bf16Bits values[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(values),
                     _mm512_cvtepi32_epi16(_mm512_srli_epi32(pixels_of_image, 16)));
  for (std::int64_t i = 0; i < pixels; ++i) to[i * stride] = values[i];
}

// Up to 16 consecutive words of one image; `channels` may be fewer.

inline __m512i load_row_words(const float* from, std::int64_t channels) {
  return _mm512_maskz_loadu_epi32(first_lanes(channels), from);
}
inline __m512i load_row_words(const Bf16Bits* from, std::int64_t channels) {
  return _mm512_maskz_loadu_epi16(first_halves(channels), from);
}
inline void store_row_words(__m512i words, std::int64_t channels, float* to) {
  _mm512_mask_storeu_epi32(to, first_lanes(channels), words);
}
inline void store_row_words(__m512i words, std::int64_t channels, Bf16Bits* to) {
  _mm512_mask_storeu_epi16(to, first_halves(channels), words);
}

/// Calls `action(channel, v, words)` for runs of up to 16 words of images of one pixel, and each of
/// the two vectors of a word.
template <class Element, class Action>
void for_each_word_run(std::int64_t channels, const Action& action) {
  for (std::int64_t channel = 0; channel < channels; channel += kLanes * kDepth<Element>) {
    const std::int64_t left = words<Element>(channels - channel);
    for (std::int64_t v = 0; v < kVectors; ++v) action(channel, v, smaller(left, kLanes));
  }
}

/// `from_plain` for images of one pixel with adjacent channels.
template <class Element>
void from_rows(std::int64_t channels, const Element* images, std::int64_t stride,
               std::int64_t count, Element* block) {
  for_each_word_run<Element>(channels, [&](auto channel, auto v, auto run) {
    Block rows;
    for (std::int64_t i = 0; i < kLanes; ++i) {
      const std::int64_t image = v * kLanes + i;
      rows[i] = image < count
                    ? load_row_words(images + image * stride + channel, channels - channel)
                    : _mm512_setzero_si512();
    }
    transpose(rows);
    Element* const to = block + channel * kImages + v * kWordSize<Element> / kVectors;
    for (std::int64_t i = 0; i < run; ++i) {
      _mm512_storeu_si512(to + i * kWordSize<Element>, rows[i]);
    }
  });
}

template <class Element>
void to_rows(std::int64_t channels, const Element* block, std::int64_t stride, std::int64_t count,
             Element* images) {
  for_each_word_run<Element>(channels, [&](auto channel, auto v, auto run) {
    Block rows = {};
    const Element* const from = block + channel * kImages + v * kWordSize<Element> / kVectors;
    for (std::int64_t i = 0; i < run; ++i) {
      rows[i] = _mm512_loadu_si512(from + i * kWordSize<Element>);
    }
    transpose(rows);
    for (std::int64_t i = 0; i < smaller(kLanes, count - v * kLanes); ++i) {
      store_row_words(rows[i], channels - channel, images + (v * kLanes + i) * stride + channel);
    }
  });
}

template <class Element>
void from_plain(const ValueShape& shape, const Element* images, const PlainStrides& strides,
                std::int64_t count, Element* block) {
  if (shape.pixels() == 1 && strides.channel == 1) {
    return from_rows(shape.channels, images, strides.image, count, block);
  }
  const std::int64_t pixel_size = words<Element>(shape.channels) * kWordSize<Element>;
  for_each_run(shape, [&](std::int64_t y, std::int64_t x, std::int64_t pixels) {
    for (std::int64_t channel = 0; channel < shape.channels; channel += kDepth<Element>) {
      for (int v = 0; v < kVectors; ++v) {
        Block of[kDepth<Element>];
        for (int d = 0; d < kDepth<Element>; ++d) {
          const std::int64_t first = v * kLanes;
          const std::int64_t images_here = channel + d < shape.channels ? count - first : 0;
          const Element* const from = images + first * strides.image +
                                      (channel + d) * strides.channel + y * strides.row +
                                      x * strides.column;
          for (std::int64_t i = 0; i < kLanes; ++i) {
            of[d][i] = i < images_here
                           ? load_pixels(from + i * strides.image, strides.column, pixels)
                           : _mm512_setzero_si512();
          }
          transpose(of[d]);
        }
        Element* to = block + (y * shape.width + x) * pixel_size + channel * kImages +
                      v * kWordSize<Element> / kVectors;
        for (std::int64_t i = 0; i < pixels; ++i, to += pixel_size) {
          Values<Element> values;
          for (int d = 0; d < kDepth<Element>; ++d) values.of[d] = _mm512_castsi512_ps(of[d][i]);
          store_words(to, values);
        }
      }
    }
  });
}

template <class Element>
void to_plain(const ValueShape& shape, const Element* block, const PlainStrides& strides,
              std::int64_t count, Element* images) {
  if (shape.pixels() == 1 && strides.channel == 1) {
    return to_rows(shape.channels, block, strides.image, count, images);
  }
  const std::int64_t pixel_size = words<Element>(shape.channels) * kWordSize<Element>;
  for_each_run(shape, [&](std::int64_t y, std::int64_t x, std::int64_t pixels) {
    for (std::int64_t channel = 0; channel < shape.channels; channel += kDepth<Element>) {
      for (int v = 0; v < kVectors; ++v) {
        Block of[kDepth<Element>] = {};
        const Element* from = block + (y * shape.width + x) * pixel_size + channel * kImages +
                              v * kWordSize<Element> / kVectors;
        for (std::int64_t i = 0; i < pixels; ++i, from += pixel_size) {
          const Values<Element> values = load_words(from);
          for (int d = 0; d < kDepth<Element>; ++d) of[d][i] = _mm512_castps_si512(values.of[d]);
        }
        const std::int64_t first = v * kLanes;
        for (int d = 0; d < kDepth<Element> && channel + d < shape.channels; ++d) {
          transpose(of[d]);
          Element* const to = images + first * strides.image + (channel + d) * strides.channel +
                              y * strides.row + x * strides.column;
          for (std::int64_t i = 0; i < smaller(kLanes, count - first); ++i) {
            store_pixels(of[d][i], strides.column, pixels, to + i * strides.image);
          }
        }
      }
    }
  });
}

}  // namespace mnist_train::cpu_kernels::avx512
