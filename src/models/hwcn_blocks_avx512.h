#pragma once

// Only for sources that are compiled with AVX-512 switched on, like lanes_avx512.h.

#include "models/hwcn_convolution.h"
#include "models/pairs_avx512.h"

/// Blocks of images [height,width,channels,32] in vectors, and sums over them.
namespace mnist_train::models::avx512 {

inline constexpr std::int64_t kImages = ImageBlock::kImages;

inline __m512i images_at(const Bf16Bits* from) { return _mm512_loadu_si512(from); }
inline __m512 images_at(const float* from) { return _mm512_loadu_ps(from); }

// These take the images of a block as two vectors, one for each half of them, as `add_products`
// wants its factors. In bf16 a lane has two elements of its image, which makes every other four
// images a half.

struct Bf16Halves {
  __m512i values[2];
};
struct F32Halves {
  __m512 values[2];
};

inline Bf16Halves zipped(__m512i even, __m512i odd) {
  return {{_mm512_unpacklo_epi16(even, odd), _mm512_unpackhi_epi16(even, odd)}};
}
inline Bf16Halves halves_at(const Bf16Bits* from) {
  return zipped(images_at(from), images_at(from + kImages));
}
/// Returns those of an element that has no other one behind it.
inline Bf16Halves last_halves_at(const Bf16Bits* from) {
  return zipped(images_at(from), _mm512_setzero_si512());
}
inline F32Halves halves_at(const float* from) {
  return {{images_at(from), images_at(from + kLanes)}};
}
inline F32Halves last_halves_at(const float* from) { return halves_at(from); }

/// Rounds the sums of the halves and stores them in the order of the images.
inline void store_halves(Bf16Bits* to, __m512 first, __m512 second) {
  alignas(64) static constexpr Bf16Bits kOrder[] = {0,  1,  2,  3,  16, 17, 18, 19, 4,  5,  6,
                                                    7,  20, 21, 22, 23, 8,  9,  10, 11, 24, 25,
                                                    26, 27, 12, 13, 14, 15, 28, 29, 30, 31};
  const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), rounded));
}
inline void store_halves(float* to, __m512 first, __m512 second) {
  _mm512_storeu_ps(to, first);
  _mm512_storeu_ps(to + kLanes, second);
}

// The first two kernels of `HwcnConvolution`.

template <class Element>
void to_hwcn(const ImageBlock& block, const Element* images, std::int64_t begin, std::int64_t end,
             Element* to);
template <class Element>
void from_hwcn(const ImageBlock& block, const Element* from, std::int64_t begin, std::int64_t end,
               Element* images);

}  // namespace mnist_train::models::avx512
