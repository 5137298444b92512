#pragma once

// Only for sources compiled with AVX-512. Must not use the standard library, whose inline functions
// could end up in code that runs on all CPUs.

#include <immintrin.h>

#include "cpu_kernels/kernels.h"

/// Vectors of 16 images. The namespace keeps the linker from merging these functions with those of
/// other sources, which must run on all CPUs.
namespace mnist_train::cpu_kernels::avx512 {

inline constexpr std::int64_t kLanes = 16;  // words per vector
inline constexpr int kVectors = 2;          // per word, for all images of a block

inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
inline std::int64_t larger(std::int64_t a, std::int64_t b) { return a < b ? b : a; }

/// Elements in a vector of words.
template <class Element>
inline constexpr std::int64_t kVectorSize = kWordSize<Element> / kVectors;

/// Calls `action.operator()<N>()` with N = `value`, one of First, First + Step, ..., Last.
template <int First, int Step, int Last, class Action>
[[gnu::always_inline]] inline void with_constant(std::int64_t value, const Action& action) {
  if constexpr (First < Last) {
    if (value != First) return with_constant<First + Step, Step, Last>(value, action);
  }
  action.template operator()<First>();
}

/// A vector of words converted to fp32: one vector per channel of a word.
template <class Element>
struct Values {
  __m512 v[kDepth<Element>];
};

/// Applies a function of vectors to each channel.
template <class Element, class Function, class... Others>
[[gnu::always_inline]] inline Values<Element> map(const Function& function,
                                                  const Values<Element>& values,
                                                  const Others&... others) {
  Values<Element> results;
  for (int d = 0; d < kDepth<Element>; ++d) results.v[d] = function(values.v[d], others.v[d]...);
  return results;
}
template <class Element>
[[gnu::always_inline]] inline Values<Element> operator+(const Values<Element>& a,
                                                        const Values<Element>& b) {
  return map([](__m512 x, __m512 y) { return x + y; }, a, b);
}
/// Returns a * b + c.
template <class Element>
[[gnu::always_inline]] inline Values<Element> multiply_add(const Values<Element>& a,
                                                           const Values<Element>& b,
                                                           const Values<Element>& c) {
  return map([](__m512 x, __m512 y, __m512 z) { return _mm512_fmadd_ps(x, y, z); }, a, b, c);
}
/// Broadcasts the per-channel constants of a word.
template <class Element>
[[gnu::always_inline]] inline Values<Element> broadcast(const float* constants) {
  Values<Element> values;
  for (int d = 0; d < kDepth<Element>; ++d) values.v[d] = _mm512_set1_ps(constants[d]);
  return values;
}

template <class Element>
[[gnu::always_inline]] inline Values<Element> to_values(__m512i words) {
  if constexpr (kDepth<Element> == 1) {
    return {{_mm512_castsi512_ps(words)}};
  } else {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    return {{_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
             _mm512_castsi512_ps(_mm512_and_si512(words, upper))}};
  }
}
template <class Element>
[[gnu::always_inline]] inline Values<Element> load_words(const Element* from) {
  return to_values<Element>(_mm512_loadu_si512(from));
}
/// Loads the mask's words; the others are zeros.
template <class Element>
[[gnu::always_inline]] inline Values<Element> load_words(const Element* from, __mmask16 mask) {
  return to_values<Element>(_mm512_maskz_loadu_epi32(mask, from));
}
inline void store_words(float* to, const Values<float>& values) {
  _mm512_storeu_ps(to, values.v[0]);
}
inline void store_rounded(float* to, __mmask16 mask, __m512 values) {
  _mm512_mask_storeu_ps(to, mask, values);
}
inline void store_words(Bf16Bits* to, const Values<Bf16Bits>& values) {
  alignas(64) static constexpr Bf16Bits kOrder[] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                    21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                    11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512bh both = _mm512_cvtne2ps_pbh(values.v[1], values.v[0]);
  _mm512_storeu_si512(
      to, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), reinterpret_cast<__m512i>(both)));
}
/// Rounds and stores up to 16 numbers.
inline void store_rounded(Bf16Bits* to, __mmask16 mask, __m512 values) {
  _mm256_mask_storeu_epi16(to, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}

/// Returns sum + a[0] * b[0] + a[1] * b[1] in each lane, for pairs a and b.
inline __m512 add_products(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}
/// Returns sum + a * b in each lane.
inline __m512 add_products(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }

// These load a vector of words or broadcast a word, as factors for `add_products`.

inline __m512 factors(const float* from) { return _mm512_loadu_ps(from); }
inline __m512i factors(const Bf16Bits* from) { return _mm512_loadu_si512(from); }
inline __m512 factor(const float* from) { return _mm512_set1_ps(*from); }
inline __m512i factor(const Bf16Bits* from) {
  std::int32_t pair;
  __builtin_memcpy(&pair, from, sizeof pair);
  return _mm512_set1_epi32(pair);
}

/// Returns the number of samples in a block. `operands` are those of a pass over the batch.
template <class Operands>
std::int64_t samples(const Operands& operands, std::int64_t block) {
  return block + 1 == operands.blocks ? operands.last_images : kImages;
}

inline __mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>((1U << (count < 0 ? 0 : smaller(count, kLanes))) - 1);
}

/// 16 rows of 16 words.
using Block = __m512i[kLanes];

/// Transposes in registers, so loops must be unrolled.
[[gnu::always_inline]] inline void transpose(Block& rows) {
  Block t;
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < 4; ++i) {
    rows[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    rows[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    rows[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    rows[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    rows[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    rows[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

/// Maximum number of rows of two vectors of sums.
inline constexpr int kMaxRows = static_cast<int>(max_panel_rows(kVectors));

/// Factors of a product: word k of row m of `a` is at a + m * a_row + k * a_step; the vectors of
/// `b` for word k are at b + k * b_step.
template <class Element>
struct Factors {
  const Element* a;
  std::int64_t a_row, a_step;
  const Element* b;
  std::int64_t b_step;
};

inline constexpr std::int64_t kPrefetchDistance = 24;  // in words
/// Maximum number of words whose products are added one after another. Longer sums of fp32 results
/// are added up in parts, which halves their errors; bf16 results hide these.
template <class Element>
inline constexpr std::int64_t kMaxTerms = kDepth<Element> == 1 ? 128 : std::int64_t{1} << 40;

/// M rows of V vectors of sums.
template <int M, int V>
struct RegisterSums {
  template <class Action>
  [[gnu::always_inline]] void for_each(const Action& action) {
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) action(m, v, rows[m][v]);
    }
  }
  // Load or store sums whose rows are `step` floats apart.
  [[gnu::always_inline]] void load(const float* from, std::int64_t step) {
    for_each(
        [&](int m, int v, __m512& sum) { sum = _mm512_loadu_ps(from + m * step + v * kLanes); });
  }
  [[gnu::always_inline]] void store(float* to, std::int64_t step) {
    for_each([&](int m, int v, __m512& sum) { _mm512_storeu_ps(to + m * step + v * kLanes, sum); });
  }

  /// Like `store`, but adds to the sums in memory unless `overwrites`.
  [[gnu::always_inline]] void store_total(float* to, std::int64_t step, bool overwrites) {
    if (!overwrites) {
      for_each([&](int m, int v, __m512& sum) {
        sum = sum + _mm512_loadu_ps(to + m * step + v * kLanes);
      });
    }
    store(to, step);
  }
  [[gnu::always_inline]] void set_to_zero() {
    for_each([](int, int, __m512& sum) { sum = _mm512_setzero_ps(); });
  }

  /// Adds the products of `count` words.
  template <class Element>
  [[gnu::always_inline]] void add(Factors<Element> f, std::int64_t count) {
    using Vector = decltype(factors(f.b));
    for (; count > 0; --count, f.a += f.a_step, f.b += f.b_step) {
      Vector b[V];
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) {
        const Element* const from = f.b + v * kVectorSize<Element>;
        b[v] = factors(from);
        __builtin_prefetch(from + kPrefetchDistance * f.b_step);
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        const Vector a = factor(f.a + m * f.a_row);
#pragma GCC unroll 3
        for (int v = 0; v < V; ++v) rows[m][v] = add_products(rows[m][v], a, b[v]);
      }
    }
  }

  __m512 rows[M][V];
};

/// Destination and epilogue for consecutive rows of panels.
template <class Element>
struct Results {
  const Element* addend;
  bool relu;
  Element* out;
  std::int64_t rows;

  /// Stores the sums of the word that starts at `row`, `distance` elements from the first pixel.
  [[gnu::always_inline]] void store(std::int64_t row, int vector, Values<Element> sums,
                                    std::int64_t distance = 0) const {
    const std::int64_t offset = distance + row * kImages + vector * kVectorSize<Element>;
    if (addend != nullptr) sums = sums + load_words(addend + offset);
    if (relu) sums = map([](__m512 x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }, sums);
    store_words(out + offset, sums);
  }
};

// Access to plain tensors, with one element per channel.

/// Returns a mask of the first `channels` channels in 16 words.
inline __mmask32 first_elements(std::int64_t channels) {
  return channels >= 2 * kLanes ? ~__mmask32{0} : (__mmask32{1} << channels) - 1;
}

/// Loads up to 16 words of adjacent channels; the rest are zeros.
inline __m512i load_channels(const float* from, std::int64_t channels) {
  return _mm512_maskz_loadu_epi32(first_lanes(channels), from);
}
inline __m512i load_channels(const Bf16Bits* from, std::int64_t channels) {
  return _mm512_maskz_loadu_epi16(first_elements(channels), from);
}
inline void store_channels(__m512i words, float* to, std::int64_t channels) {
  _mm512_mask_storeu_epi32(to, first_lanes(channels), words);
}
inline void store_channels(__m512i words, Bf16Bits* to, std::int64_t channels) {
  _mm512_mask_storeu_epi16(to, first_elements(channels), words);
}

/// Loads a word for each of up to 16 adjacent columns. A word's channels are `step` elements apart.
/// `channels` is the number of channels left; missing ones are read as zeros.
inline __m512i load_columns(const float* from, std::int64_t /*step*/, std::int64_t columns,
                            std::int64_t channels) {
  return _mm512_maskz_loadu_epi32(channels > 0 ? first_lanes(columns) : __mmask16{0}, from);
}
inline __m512i load_columns(const Bf16Bits* from, std::int64_t step, std::int64_t columns,
                            std::int64_t channels) {
  const auto load = [&](std::int64_t channel) {
    const __mmask16 mask = channel < channels ? first_lanes(columns) : __mmask16{0};
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + channel * step));
  };
  return _mm512_or_si512(load(0), _mm512_slli_epi32(load(1), 16));
}
inline void store_columns(__m512i words, float* to, std::int64_t columns) {
  _mm512_mask_storeu_epi32(to, first_lanes(columns), words);
}
inline void store_columns(__m512i words, Bf16Bits* to, std::int64_t columns) {
  _mm256_mask_storeu_epi16(to, first_lanes(columns), _mm512_cvtepi32_epi16(words));
}

/// AMX registers with 16 rows of 64 bytes. Uses inline assembly, because GCC's intrinsics do not
/// declare which memory they access.
namespace amx {

template <int Register>
void load(const void* from, std::int64_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(row_bytes), "i"(Register)
               : "memory");
}
template <int Register>
void store(void* to, std::int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(to), "r"(row_bytes), "i"(Register)
               : "memory");
}
template <int Register>
void set_to_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(Register));
}
template <int Sums, int A, int B>
void multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(A), "i"(B));
}

/// Keeps the registers configured during the object's lifetime: 0 to 3 hold sums, 4 and 5 the first
/// factor, and 6 and 7 the second factor.
class Registers {
 public:
  Registers() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; ++i) {
      config.row_bytes[i] = 64;
      config.rows[i] = 16;
    }
    asm volatile("ldtilecfg (%0)" : : "r"(&config) : "memory");
  }
  ~Registers() { asm volatile("tilerelease" : : : "memory"); }
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
};

/// A by B registers of 16 x 16 sums. Rows of the factors are `a_row` and `b_row` bytes apart.
template <int A, int B>
struct Sums {
  static void set_to_zero() {
    amx::set_to_zero<0>();
    if constexpr (B == 2) amx::set_to_zero<1>();
    if constexpr (A == 2) amx::set_to_zero<2>();
    if constexpr (A == 2 && B == 2) amx::set_to_zero<3>();
  }
  /// Adds the products of the tiles at `a` and `a2` with the tiles at `b`.
  static void add(const void* a, const void* a2, std::int64_t a_row, const void* b,
                  std::int64_t b_row) {
    load<4>(a, a_row);
    load<6>(b, b_row);
    multiply<0, 4, 6>();
    if constexpr (B == 2) load<7>(static_cast<const char*>(b) + 64, b_row);
    if constexpr (B == 2) multiply<1, 4, 7>();
    if constexpr (A == 2) load<5>(a2, a_row);
    if constexpr (A == 2) multiply<2, 5, 6>();
    if constexpr (A == 2 && B == 2) multiply<3, 5, 7>();
  }
  // Load or store sums whose rows are `step` floats apart.
  static void load_sums(const float* from, std::int64_t step) {
    load<0>(from, 4 * step);
    if constexpr (B == 2) load<1>(from + 16, 4 * step);
    if constexpr (A == 2) load<2>(from + 16 * step, 4 * step);
    if constexpr (A == 2 && B == 2) load<3>(from + 16 * step + 16, 4 * step);
  }
  static void store_sums(float* to, std::int64_t step) {
    store<0>(to, 4 * step);
    if constexpr (B == 2) store<1>(to + 16, 4 * step);
    if constexpr (A == 2) store<2>(to + 16 * step, 4 * step);
    if constexpr (A == 2 && B == 2) store<3>(to + 16 * step + 16, 4 * step);
  }
};

}  // namespace amx

}  // namespace mnist_train::cpu_kernels::avx512
