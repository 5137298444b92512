#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"
#include "cpu_kernels/layer_kernels.h"

namespace mnist_train::cpu_kernels::avx512 {

/// Calls `action(y, x, pixels)` for runs of up to 16 pixels of a row.
template <class Action>
void for_each_run(const ImageShape& shape, const Action& action) {
  for (std::int64_t y = 0; y < shape.height; ++y) {
    for (std::int64_t x = 0; x < shape.width; x += kLanes) {
      action(y, x, smaller(kLanes, shape.width - x));
    }
  }
}

/// Loads 16 pixels of 16 images of one channel, a vector per image.
inline void load_pixels(const float* images, const PlainStrides& strides, std::int64_t count,
                        std::int64_t pixels, Block& block) {
  const __m512i columns =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(static_cast<int>(strides.column)));
  for (std::int64_t i = 0; i < kLanes; ++i) {
    const __mmask16 mask = i < count ? first_lanes(pixels) : __mmask16{0};
    const float* const from = images + i * strides.image;
    block[i] = strides.column == 1
                   ? _mm512_maskz_loadu_epi32(mask, from)
                   : _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, columns, from, 4);
  }
}

inline void store_pixels(const Block& block, const PlainStrides& strides, std::int64_t count,
                         std::int64_t pixels, float* images) {
  const __m512i columns =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(static_cast<int>(strides.column)));
  for (std::int64_t i = 0; i < smaller(kLanes, count); ++i) {
    float* const to = images + i * strides.image;
    strides.column == 1
        ? _mm512_mask_storeu_epi32(to, first_lanes(pixels), block[i])
        : _mm512_mask_i32scatter_epi32(to, first_lanes(pixels), columns, block[i], 4);
  }
}

template <class Element>
void from_plain(const ImageShape& shape, const float* images, const PlainStrides& strides,
                std::int64_t count, Element* block) {
  const std::int64_t pixel_size = words<Element>(shape.channels) * kWordSize<Element>;
  for_each_run(shape, [&](std::int64_t y, std::int64_t x, std::int64_t pixels) {
    for (std::int64_t channel = 0; channel < shape.channels; channel += kDepth<Element>) {
      for (int v = 0; v < kVectors; ++v) {
        Block of[kDepth<Element>];
        for (int d = 0; d < kDepth<Element>; ++d) {
          const std::int64_t first = v * kLanes;
          const std::int64_t images_here = channel + d < shape.channels ? count - first : 0;
          load_pixels(images + first * strides.image + (channel + d) * strides.channel +
                          y * strides.row + x * strides.column,
                      strides, images_here, pixels, of[d]);
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
void to_plain(const ImageShape& shape, const Element* block, const PlainStrides& strides,
              std::int64_t count, float* images) {
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
          store_pixels(of[d], strides, count - first, pixels,
                       images + first * strides.image + (channel + d) * strides.channel +
                           y * strides.row + x * strides.column);
        }
      }
    }
  });
}

}  // namespace mnist_train::cpu_kernels::avx512
