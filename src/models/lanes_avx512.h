#pragma once

// Only for sources that are compiled with AVX-512 switched on. Nothing of the standard library may
// be used here, or its inline functions could end up in the program for all processors.

#include <immintrin.h>

#include "models/convolution_shape.h"

/// Vectors of bf16 and of fp32 sums, in a namespace of their own so that no other source gets their
/// instructions.
namespace mnist_train::models::avx512 {

inline constexpr std::int64_t kLanes = 16;  // fp32 elements of a vector
inline constexpr std::int64_t kPairs = 32;  // bf16 elements of a vector: 16 pairs

/// How many elements of an inner dimension one instruction multiplies and adds up: pairs of bf16.
template <class Element>
inline constexpr std::int64_t kDepth = 4 / sizeof(Element);
/// How many elements a vector has.
template <class Element>
inline constexpr std::int64_t kVectorElements = kLanes* kDepth<Element>;

inline std::int64_t vectors(std::int64_t elements) { return (elements + kLanes - 1) / kLanes; }
inline std::int64_t pairs_of(std::int64_t elements) { return (elements + 1) / 2; }
/// Returns how many pairs, or elements of f32, an inner dimension has.
template <class Element>
std::int64_t depths_of(std::int64_t inner) {
  return (inner + kDepth<Element> - 1) / kDepth<Element>;
}

inline __mmask16 lanes(std::int64_t count) {
  return count >= kLanes ? __mmask16{0xffff} : static_cast<__mmask16>((1U << count) - 1);
}

/// Returns in each lane sum + a[0] * b[0] + a[1] * b[1] of that lane's pairs a and b.
inline __m512 add_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

/// Returns in each lane sum + a * b.
inline __m512 add_products(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }

inline float to_float(Bf16Bits bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(static_cast<std::uint16_t>(bits)) << 16U;
  float value;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

inline float to_float(float value) { return value; }

// These return in all lanes the pair of bf16, or the f32, that lies there.

inline __m512i factor_at(const Bf16Bits* from) {
  std::int32_t pair;
  __builtin_memcpy(&pair, from, sizeof pair);
  return _mm512_set1_epi32(pair);
}
inline __m512 factor_at(const float* from) { return _mm512_set1_ps(*from); }
/// The second of the pair is zero.
inline __m512i half_factor_at(const Bf16Bits* from) {
  return _mm512_set1_epi32(static_cast<std::uint16_t>(*from));
}

inline void store_rounded(Bf16Bits* to, __mmask16 mask, __m512 values) {
  _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

inline void store_rounded(float* to, __mmask16 mask, __m512 values) {
  _mm512_mask_storeu_ps(to, mask, values);
}

}  // namespace mnist_train::models::avx512
