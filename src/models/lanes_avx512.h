#pragma once

// Only for sources compiled with AVX-512. Must not use the standard library, whose inline functions
// could then end up in code for all processors.

#include <immintrin.h>

#include "models/convolution_shape.h"

/// Vectors of bf16 and of fp32 sums, in a separate namespace so that no other source gets their
/// instructions.
namespace mnist_train::models::avx512 {

inline constexpr std::int64_t kLanes = 16;  // fp32 elements of a vector
inline constexpr std::int64_t kPairs = 32;  // bf16 elements of a vector: 16 pairs

/// Elements of an inner dimension per multiply-add instruction: pairs of bf16.
template <class Element>
inline constexpr std::int64_t kDepth = 4 / sizeof(Element);
/// Elements of a vector.
template <class Element>
inline constexpr std::int64_t kVectorElements = kLanes* kDepth<Element>;

inline std::int64_t vectors(std::int64_t elements) { return (elements + kLanes - 1) / kLanes; }
inline std::int64_t pairs_of(std::int64_t elements) { return (elements + 1) / 2; }
/// Returns the number of pairs, or of f32 elements, of an inner dimension.
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

// Broadcast a pair of bf16, or an f32, to all lanes.

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

/// Returns a[0] b[0] a[1] b[1] … of the elements under the mask; a null b counts as zeros.
inline __m512i zip(const Bf16Bits* a, const Bf16Bits* b, __mmask16 mask) {
  alignas(64) static constexpr Bf16Bits kOrder[] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                    37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                    11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i first = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, a));
  const __m512i second = b == nullptr ? _mm512_setzero_si512()
                                      : _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, b));
  return _mm512_permutex2var_epi16(first, _mm512_load_si512(kOrder), second);
}

/// Distance of software prefetches in rows: hardware does not prefetch rows that are far apart.
inline constexpr std::int64_t kRowsAhead = 16;

/// Prefetches elements into all caches, or with `Level` 2 not into the first. Reading past the end
/// is harmless.
template <int Level = 3, class Element>
[[gnu::always_inline]] inline void prefetch_elements(const Element* from, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(Element);
  for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + i, 0, Level);
}

/// Packs rows of groups of adjacent elements as [rows][pairs of groups][elements][2], elements in
/// whole vectors. Groups are `step` elements apart.
struct GroupPairs {
  std::int64_t rows, groups, row_step, step, elements;

  std::int64_t pair_size() const { return vectors(elements) * kPairs; }
  std::int64_t row_size() const { return pairs_of(groups) * pair_size(); }

  void zip_all(const Bf16Bits* from, Bf16Bits* to) const {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t x = 0; x < groups; x += 2) {
        const Bf16Bits* const first = from + row * row_step + x * step;
        prefetch_elements(first + kRowsAhead * step, elements);
        prefetch_elements(first + (kRowsAhead + 1) * step, elements);
        for (std::int64_t i = 0; i < elements; i += kLanes, to += kPairs) {
          const Bf16Bits* const second = x + 1 < groups ? first + step + i : nullptr;
          _mm512_storeu_si512(to, zip(first + i, second, lanes(elements - i)));
        }
      }
    }
  }
};

/// Writes weights as [taps][inner / depth][outputs][depth], padded with zeros; the depth is 2 for
/// bf16 and 1 for f32. `weight(tap, inner, output)` returns one weight.
template <class Element, class Weight>
void pack(std::int64_t taps, std::int64_t inner, std::int64_t outputs, const Weight& weight,
          Element* to) {
  for (std::int64_t tap = 0; tap < taps; ++tap) {
    for (std::int64_t first = 0; first < inner; first += kDepth<Element>) {
      for (std::int64_t output = 0; output < outputs; ++output) {
        for (std::int64_t i = first; i < first + kDepth<Element>; ++i) {
          *to++ = i < inner ? weight(tap, i, output) : Element{0};
        }
      }
    }
  }
}

/// Transposes 16 vectors of 16 words of 32 bits: exchanges quarters of blocks of 16, 8, 4 and 2.
inline void transpose(__m512i (&rows)[kLanes]) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
    const __m512i width = _mm512_set1_epi32(half);
    const __mmask16 right = _mm512_test_epi32_mask(lane, width);
    const __m512i second = _mm512_add_epi32(lane, _mm512_set1_epi32(kLanes));
    const __m512i upper = _mm512_mask_sub_epi32(lane, right, second, width);
    const __m512i lower = _mm512_mask_mov_epi32(_mm512_add_epi32(lane, width), right, second);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if ((i & half) != 0) continue;
      const __m512i above = rows[i];
      rows[i] = _mm512_permutex2var_epi32(above, upper, rows[i + half]);
      rows[i + half] = _mm512_permutex2var_epi32(above, lower, rows[i + half]);
    }
  }
}

/// Transposes a matrix of f32 or of pairs of bf16: row i begins at from + i * from_step, column i
/// at to + i * to_step.
template <class Element>
void transpose(const Element* from, std::int64_t from_step, std::int64_t rows, std::int64_t columns,
               Element* to, std::int64_t to_step) {
  for (std::int64_t row = 0; row < rows; row += kLanes) {
    const std::int64_t height = rows - row < kLanes ? rows - row : kLanes;
    for (std::int64_t column = 0; column < columns; column += kLanes) {
      const std::int64_t width = columns - column < kLanes ? columns - column : kLanes;
      __m512i words[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const Element* const begin = from + (row + i) * from_step + kDepth<Element> * column;
        words[i] =
            i < height ? _mm512_maskz_loadu_epi32(lanes(width), begin) : _mm512_setzero_si512();
      }
      transpose(words);
      for (int i = 0; i < width; ++i) {
        _mm512_mask_storeu_epi32(to + (column + i) * to_step + kDepth<Element> * row, lanes(height),
                                 words[i]);
      }
    }
  }
}

}  // namespace mnist_train::models::avx512
