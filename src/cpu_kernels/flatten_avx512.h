#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"

namespace mnist_train::cpu_kernels::avx512 {

/// Where an element of all images of a block is: in a row of words, which may hold two.
template <class Element>
struct ElementRow {
  const Element* words;  // null: zeros
  bool is_upper;
};

/// Returns the row of an element of images, or of vectors if `shape` has one pixel.
template <class Element>
ElementRow<Element> row_of(const ValueShape& shape, const Element* block, std::int64_t channel,
                           std::int64_t pixel) {
  if (channel >= shape.channels) return {nullptr, false};
  const std::int64_t word = pixel * words<Element>(shape.channels) + channel / kDepth<Element>;
  return {block + word * kWordSize<Element>, channel % kDepth<Element> == 1};
}

inline void store_row(const ElementRow<float> (&elements)[1], float* to) {
  for (std::int64_t v = 0; v < kVectors; ++v) {
    _mm512_storeu_ps(to + v * kLanes, _mm512_loadu_ps(elements[0].words + v * kLanes));
  }
}
inline void store_row(const ElementRow<Bf16Bits> (&elements)[2], Bf16Bits* to) {
  const __m512i lower = _mm512_set1_epi32(0xffff);
  for (std::int64_t v = 0; v < kVectors; ++v) {
    __m512i halves[2];
    for (int i = 0; i < 2; ++i) {
      const Bf16Bits* const from = elements[i].words;
      halves[i] =
          from == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(from + v * 2 * kLanes);
      if (elements[i].is_upper) halves[i] = _mm512_srli_epi32(halves[i], 16);
    }
    _mm512_storeu_si512(to + v * 2 * kLanes, _mm512_or_si512(_mm512_and_si512(halves[0], lower),
                                                             _mm512_slli_epi32(halves[1], 16)));
  }
}

template <class Element>
void flatten(const ValueShape& shape, const Element* images, Element* vectors) {
  const std::int64_t pixels = shape.pixels();
  for (std::int64_t at = 0; at < shape.channels * pixels; at += kDepth<Element>) {
    ElementRow<Element> elements[kDepth<Element>];
    for (std::int64_t d = 0; d < kDepth<Element>; ++d) {
      elements[d] = row_of(shape, images, (at + d) / pixels, (at + d) % pixels);
    }
    store_row(elements, vectors);
    vectors += kWordSize<Element>;
  }
}

template <class Element>
void unflatten(const ValueShape& shape, const Element* vectors, Element* images) {
  const std::int64_t pixels = shape.pixels();
  const ValueShape vector{shape.channels * pixels, 1, 1};
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel) {
    for (std::int64_t channel = 0; channel < shape.channels; channel += kDepth<Element>) {
      ElementRow<Element> elements[kDepth<Element>];
      for (std::int64_t d = 0; d < kDepth<Element>; ++d) {
        const std::int64_t index =
            channel + d < shape.channels ? (channel + d) * pixels + pixel : vector.channels;
        elements[d] = row_of(vector, vectors, index, 0);
      }
      store_row(elements, images);
      images += kWordSize<Element>;
    }
  }
}

}  // namespace mnist_train::cpu_kernels::avx512
