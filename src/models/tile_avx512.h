#pragma once

// Only for sources that are compiled with AVX-512 switched on, like lanes_avx512.h.

#include "models/lanes_avx512.h"

/// Products of matrices with fp32 sums in registers: of bf16 two elements of the inner dimension at
/// a time, of f32 one.
namespace mnist_train::models::avx512 {

inline constexpr std::int64_t kMaxVectors = 4;  // columns of a tile, in vectors
inline constexpr std::int64_t kTile = 24;       // vectors of sums in a tile, of 32 registers

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
    constexpr std::int64_t kVector = 64 / sizeof(Element);
    return {a + row * a_row, a_row, a_step, b + vector * kVector, b_step};
  }
};

/// M rows of V vectors of sums, kept in registers.
template <int M, int V>
struct Tile {
  __m512 sums[M][V];

  /// Adds the product over an inner dimension of `size`; the last of an odd one is half a pair.
  [[gnu::always_inline]] void add(Factors<Bf16Bits> f, std::int64_t size) {
    for (std::int64_t k = 0; k < size / 2; ++k, f.a += f.a_step, f.b += f.b_step) {
      multiply(f, [](const Bf16Bits* from) { return pair_at(from); });
    }
    if (size % 2 != 0) multiply(f, [](const Bf16Bits* from) { return half_pair_at(from); });
  }
  [[gnu::always_inline]] void add(Factors<float> f, std::int64_t size) {
    for (std::int64_t k = 0; k < size; ++k, f.a += f.a_step, f.b += f.b_step) {
      multiply(f, [](const float* from) { return _mm512_set1_ps(*from); });
    }
  }

  template <class Action>
  [[gnu::always_inline]] void for_each(const Action& action) {
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) action(m, v, sums[m][v]);
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
      for (int v = 0; v < V; ++v) sums[m][v] = add_products(sums[m][v], a, b[v]);
    }
  }
};

/// Covers `rows` rows of V vectors with calls of `work.tile<M, V>(row, vector)`: as few tiles as
/// the registers allow, of similar size.
template <int V, class Work>
void tile_rows(std::int64_t rows, std::int64_t vector, const Work& work) {
  constexpr std::int64_t kMost = kTile / V;
  const std::int64_t tiles = (rows + kMost - 1) / kMost;
  const std::int64_t wanted = tiles == 0 ? 0 : (rows + tiles - 1) / tiles;
  std::int64_t row = 0;
  const auto cover = [&]<int M, int Smaller>() {
    if constexpr (M <= kMost) {
      if (Smaller >= wanted) return;
      for (; rows - row >= M; row += M) work.template tile<M, V>(row, vector);
    }
  };
  cover.template operator()<12, 8>();
  cover.template operator()<8, 6>();
  cover.template operator()<6, 5>();
  cover.template operator()<5, 4>();
  cover.template operator()<4, 2>();
  cover.template operator()<2, 1>();
  cover.template operator()<1, 0>();
}

/// Covers `rows` rows of `count` vectors with calls of `work.tile<M, V>(row, vector)`.
template <class Work>
void for_each_tile(std::int64_t rows, std::int64_t count, const Work& work) {
  for (std::int64_t vector = 0; vector < count; vector += kMaxVectors) {
    switch (count - vector) {
      case 1:
        tile_rows<1>(rows, vector, work);
        break;
      case 2:
        tile_rows<2>(rows, vector, work);
        break;
      case 3:
        tile_rows<3>(rows, vector, work);
        break;
      default:
        tile_rows<4>(rows, vector, work);
    }
  }
}

}  // namespace mnist_train::models::avx512
