#pragma once

// Only for sources that are compiled with AVX-512 switched on; nothing of the standard library may
// be used here, or its inline functions could end up in the program for all processors.

#include <immintrin.h>

#include <cstdint>

/// Vectors of bf16 and of fp32 sums. In a namespace of their own, so that no other source gets
/// their instructions.
namespace mnist_train::models::avx512 {

using Bits = std::int16_t;  // of a bf16

inline constexpr std::int64_t kLanes = 16;  // of fp32
inline constexpr std::int64_t kPairs = 32;  // bf16 elements of one vector: 16 pairs

inline std::int64_t vectors(std::int64_t elements) { return (elements + kLanes - 1) / kLanes; }
inline std::int64_t pairs_of(std::int64_t elements) { return (elements + 1) / 2; }

inline __mmask16 lanes(std::int64_t count) {
  return count >= kLanes ? __mmask16{0xffff} : static_cast<__mmask16>((1U << count) - 1);
}

/// Each lane: sum + a * b of the first of a pair + a * b of the second.
inline __m512 add_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

inline __m512i pair_at(const Bits* from) {
  std::int32_t pair;
  __builtin_memcpy(&pair, from, sizeof pair);
  return _mm512_set1_epi32(pair);
}

inline __m512i half_pair_at(const Bits* from) {
  return _mm512_set1_epi32(static_cast<std::uint16_t>(*from));
}

inline void store_rounded(Bits* to, __mmask16 mask, __m512 values) {
  _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

/// a0 b0 a1 b1 …; zeros for a null `b`.
inline __m512i zip(const Bits* a, const Bits* b, __mmask16 mask) {
  alignas(64) static constexpr Bits kOrder[] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i first = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, a));
  const __m512i second = b == nullptr ? _mm512_setzero_si512()
                                      : _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, b));
  return _mm512_permutex2var_epi16(first, _mm512_load_si512(kOrder), second);
}

}  // namespace mnist_train::models::avx512
