#pragma once

// Only for sources that are compiled with AVX-512 switched on, like lanes_avx512.h.

#include "models/lanes_avx512.h"

/// Products of matrices with fp32 sums in registers: of bf16 two elements of the inner dimension at
/// a time, of f32 one.
namespace mnist_train::models::avx512 {

inline constexpr std::int64_t kMaxVectors = 4;  // columns of a tile, in vectors
inline constexpr std::int64_t kTile = 24;       // vectors of sums in a tile, of 32 registers
inline constexpr std::int64_t kTileRows = kTile / kMaxVectors;  // of the widest tile

/// The factors of a matrix product whose inner dimension is taken in pairs (bf16) or one by one
/// (f32). Pair k of row m of `a` lies at a + m * a_row + k * a_step; the pairs k of all columns of
/// `b`, as vectors, at b + k * b_step.
template <class Element>
struct Factors {
  const Element* a;
  std::int64_t a_row, a_step;
  const Element* b;
  std::int64_t b_step;

  /// Returns those of the part of the product that begins at this row and vector.
  Factors from(std::int64_t row, std::int64_t vector) const {
    return {a + row * a_row, a_row, a_step, b + vector * kVectorElements<Element>, b_step};
  }
};

/// M rows of V vectors of sums, kept in registers.
template <int M, int V>
class Tile {
 public:
  struct Shapes {};
  explicit Tile(Shapes /*known*/) {}

  static constexpr std::int64_t rows() { return M; }

  void set_to_zero() {
    for_each([](int, int, __m512& sum) { sum = _mm512_setzero_ps(); });
  }
  /// Loads sums whose rows lie `step` floats apart, or stores them there.
  void load(const float* from, std::int64_t step) {
    for_each(
        [&](int m, int v, __m512& sum) { sum = _mm512_loadu_ps(from + m * step + v * kLanes); });
  }
  void store(float* to, std::int64_t step) {
    for_each([&](int m, int v, __m512& sum) { _mm512_storeu_ps(to + m * step + v * kLanes, sum); });
  }

  /// Does nothing: here the processor fetches what will be written soon by itself.
  template <class Element>
  void prefetch(const Element* /*to*/, std::int64_t /*step*/) const {}

  /// Adds the product over an inner dimension of `size`; the last of an odd one is half a pair.
  template <class Element>
  [[gnu::always_inline]] void add(Factors<Element> f, std::int64_t size) {
    for (std::int64_t k = 0; k < size / kDepth<Element>; ++k, f.a += f.a_step, f.b += f.b_step) {
      multiply(f, [](const Element* from) { return factor_at(from); });
    }
    if constexpr (kDepth<Element> == 2) {
      if (size % 2 != 0) multiply(f, [](const Element* from) { return half_factor_at(from); });
    }
  }

  /// Adds the product as `add` does, of rows of `a` whose elements lie side by side. Meanwhile it
  /// fetches as many rows behind them from memory, which the next tile takes.
  template <class Element>
  [[gnu::always_inline]] void add_and_fetch(Factors<Element> f, std::int64_t size) {
    constexpr std::int64_t kLine = 64 / sizeof(Element);
    std::int64_t k = 0;
    for (; k + kLine <= size; k += kLine) {
#pragma GCC unroll 12
      for (int m = 0; m < M; ++m) __builtin_prefetch(f.a + (M + m) * f.a_row, 0, 2);
      add(f, kLine);
      f.a += kLine;
      f.b += kLine / f.a_step * f.b_step;
    }
    add(f, size - k);
  }

  template <class Action>
  [[gnu::always_inline]] void for_each(const Action& action) {
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) action(m, v, sums_[m][v]);
    }
  }

 private:
  template <class Element, class Load>
  [[gnu::always_inline]] void multiply(const Factors<Element>& f, const Load& load) {
    using Vector = decltype(load(f.a));
    Vector b[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) __builtin_memcpy(&b[v], f.from(0, v).b, sizeof(Vector));
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      const Vector a = load(f.a + m * f.a_row);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums_[m][v] = add_products(sums_[m][v], a, b[v]);
    }
  }

  __m512 sums_[M][V];
};

}  // namespace mnist_train::models::avx512
