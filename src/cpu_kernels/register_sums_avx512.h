#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/lanes_avx512.h"

namespace mnist_train::cpu_kernels::avx512 {

/// Most rows of two vectors of sums: 28 of 32 registers.
inline constexpr int kMostRows = 14;

/// Factors of a product: word k of row m of `a` is at a + m * a_row + k * a_step, the vectors of
/// `b` for word k are at b + k * b_step.
template <class Element>
struct Factors {
  const Element* a;
  std::int64_t a_row, a_step;
  const Element* b;
  std::int64_t b_step;
};

inline constexpr std::int64_t kAhead = 24;  // words between a load and a prefetch

/// M rows of V vectors of sums.
template <int M, int V>
struct RegisterSums {
  template <class Action>
  [[gnu::always_inline]] void for_each(const Action& action) {
#pragma GCC unroll 14
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) action(m, v, of[m][v]);
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

  /// Adds the product over `count` words.
  template <class Element>
  [[gnu::always_inline]] void add(Factors<Element> f, std::int64_t count) {
    using Vector = decltype(factors(f.b));
    for (; count > 0; --count, f.a += f.a_step, f.b += f.b_step) {
      Vector b[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const Element* const from = f.b + v * kWordSize<Element> / kVectors;
        b[v] = factors(from);
        __builtin_prefetch(from + kAhead * f.b_step);
      }
#pragma GCC unroll 14
      for (int m = 0; m < M; ++m) {
        const Vector a = factor(f.a + m * f.a_row);
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) of[m][v] = add_products(of[m][v], a, b[v]);
      }
    }
  }

  __m512 of[M][V];
};

}  // namespace mnist_train::cpu_kernels::avx512
