#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "base/cpu.h"
#include "models/lanes_avx512.h"

/// Products of matrices with fp32 sums in registers: of bf16 two elements of the inner dimension at
/// a time, of f32 one.
namespace mnist_train::models::avx512 {

inline constexpr std::int64_t kMaxVectors = 4;  // columns of a tile, in vectors
inline constexpr std::int64_t kTile = 24;       // vectors of sums in a tile, of 32 registers
inline constexpr std::int64_t kTileRows = kTile / kMaxVectors;  // of the widest tile

/// The factors of a matrix product whose inner dimension is taken in pairs (bf16) or one by one
/// (f32). Pair k of row m of `a` is at a + m * a_row + k * a_step; the pairs k of all columns of
/// `b`, as vectors, are at b + k * b_step.
template <class Element>
struct Factors {
  const Element* a;
  std::int64_t a_row, a_step;
  const Element* b;
  std::int64_t b_step;

  /// Returns the factors of the part of the product that begins at this row and vector.
  Factors from(std::int64_t row, std::int64_t vector) const {
    return {a + row * a_row, a_row, a_step, b + vector * kVectorElements<Element>, b_step};
  }
};

/// M rows of V vectors of sums in registers.
template <int M, int V>
class Tile {
 public:
  struct Shapes {};
  explicit Tile(Shapes /*known*/) {}

  static constexpr std::int64_t rows() { return M; }

  void set_to_zero() {
    for_each([](int, int, __m512& sum) { sum = _mm512_setzero_ps(); });
  }
  /// Loads sums whose rows are `step` floats apart, or stores them there.
  void load(const float* from, std::int64_t step) {
    for_each(
        [&](int m, int v, __m512& sum) { sum = _mm512_loadu_ps(from + m * step + v * kLanes); });
  }
  void store(float* to, std::int64_t step) {
    for_each([&](int m, int v, __m512& sum) { _mm512_storeu_ps(to + m * step + v * kLanes, sum); });
  }

  /// No-op: here hardware prefetching works.
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

  /// The same for rows of `a` with adjacent elements, while prefetching the rows of the next tile.
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

// Products of bf16 matrices by AMX, whose registers hold up to 16 rows of 64 bytes.

// GCC's intrinsics for these do not tell the compiler which memory they read.
template <int Register>
void load_amx(const void* from, std::int64_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(row_bytes), "i"(Register)
               : "memory");
}
template <int Register>
void store_amx(void* to, std::int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(to), "r"(row_bytes), "i"(Register)
               : "memory");
}
template <int Register>
void zero_amx() {
  asm volatile("tilezero %%tmm%c0" : : "i"(Register));
}
template <int Sums, int A, int B>
void multiply_amx() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(A), "i"(B));
}

inline constexpr std::int64_t kAmxVectors = 2;  // columns of a tile, in vectors, at most

/// Shapes of the registers: 0 to 3 hold sums, 4 and 5 rows of `a`, 6 and 7 pairs of `b`.
struct AmxShapes {
  static constexpr std::int64_t kMost = 16;

  std::int64_t rows;   // of sums and of `a`, at most kMost
  std::int64_t pairs;  // of the inner dimension per instruction, at most kMost

  void configure() const {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } to;
    for (int i = 0; i < 8; ++i) {
      to.row_bytes[i] = static_cast<std::uint16_t>(i / 2 == 2 ? 4 * pairs : 64);
      to.rows[i] = static_cast<std::uint8_t>(i / 2 == 3 ? pairs : rows);
    }
    asm volatile("ldtilecfg (%0)" : : "r"(&to) : "memory");
  }
  static void release() { asm volatile("tilerelease" : : : "memory"); }
};

/// A times the rows of the shapes, of V vectors of sums, which are in AMX registers while products
/// are added.
template <int A, int V>
class AmxTile {
 public:
  using Shapes = AmxShapes;
  explicit AmxTile(AmxShapes shapes) : shapes_(shapes) {}

  std::int64_t rows() const { return A * shapes_.rows; }

  [[gnu::always_inline]] void set_to_zero() {
    for_register([]<int Register>(std::int64_t, int) { zero_amx<Register>(); });
    in_registers_ = true;
  }
  /// Loads sums whose rows are `step` floats apart, or stores them there.
  [[gnu::always_inline]] void load(const float* from, std::int64_t step) {
    const std::int64_t row_bytes = sizeof(float) * step;
    for_register([&]<int Register>(std::int64_t row, int vector) {
      load_amx<Register>(from + row * step + vector * kLanes, row_bytes);
    });
    in_registers_ = true;
  }
  [[gnu::always_inline]] void store(float* to, std::int64_t step) const {
    const std::int64_t row_bytes = sizeof(float) * step;
    for_register([&]<int Register>(std::int64_t row, int vector) {
      store_amx<Register>(to + row * step + vector * kLanes, row_bytes);
    });
  }

  /// Prefetches for writing the cache lines of the rows, `step` elements apart.
  [[gnu::always_inline]] void prefetch(const Bf16Bits* to, std::int64_t step) const {
    for (std::int64_t m = 0; m < A * shapes_.rows; ++m) __builtin_prefetch(to + m * step, 1);
  }

  /// Adds the product over an inner dimension of `size`, a multiple of the shapes' pairs. The pairs
  /// of a row of `a` are adjacent.
  [[gnu::always_inline]] void add(Factors<Bf16Bits> f, std::int64_t size) {
    if (!in_registers_) load(sums_, kWidth);
    const std::int64_t a_row = sizeof(Bf16Bits) * f.a_row;
    const std::int64_t b_row = sizeof(Bf16Bits) * f.b_step;
    for (std::int64_t k = 0; k < size; k += 2 * shapes_.pairs) {
      load_amx<4>(f.a, a_row);
      load_amx<6>(f.b, b_row);
      multiply_amx<0, 4, 6>();
      if constexpr (V == 2) load_amx<7>(f.from(0, 1).b, b_row);
      if constexpr (V == 2) multiply_amx<1, 4, 7>();
      if constexpr (A == 2) load_amx<5>(f.from(shapes_.rows, 0).a, a_row);
      if constexpr (A == 2) multiply_amx<2, 5, 6>();
      if constexpr (A == 2 && V == 2) multiply_amx<3, 5, 7>();
      f.a += 2 * shapes_.pairs;
      f.b += shapes_.pairs * f.b_step;
    }
  }

  /// The same as `add`: whether prefetching helps here was not measured.
  [[gnu::always_inline]] void add_and_fetch(Factors<Bf16Bits> f, std::int64_t size) {
    add(f, size);
  }

  template <class Action>
  [[gnu::always_inline]] void for_each(const Action& action) {
    if (in_registers_) store(sums_, kWidth);
    in_registers_ = false;
    for (int m = 0; m < A * shapes_.rows; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        float* const at = sums_ + m * kWidth + v * kLanes;
        __m512 sum = _mm512_load_ps(at);
        action(m, v, sum);
        constexpr bool kReads = requires(const __m512& known) { action(0, 0, known); };
        if constexpr (!kReads) _mm512_store_ps(at, sum);
      }
    }
  }

 private:
  static constexpr std::int64_t kWidth = V * kLanes;

  /// Calls `action.operator()<Register>(row, vector)` for all registers of sums.
  template <class Action>
  [[gnu::always_inline]] void for_register(const Action& action) const {
    action.template operator()<0>(0, 0);
    if constexpr (V == 2) action.template operator()<1>(0, 1);
    if constexpr (A == 2) action.template operator()<2>(shapes_.rows, 0);
    if constexpr (A == 2 && V == 2) action.template operator()<3>(shapes_.rows, 1);
  }

  AmxShapes shapes_;
  bool in_registers_ = false;
  alignas(64) float sums_[A * AmxShapes::kMost * kWidth];
};

/// Covers `rows` rows of V vectors with calls of `work.tile<Tile<M, V>>({}, row, vector)`: with few
/// tiles, most of which nearly fill the registers.
template <int V, class Work>
void tile_rows(std::int64_t rows, std::int64_t vector, const Work& work) {
  constexpr std::int64_t kMost = kTile / V;
  std::int64_t tiles = (rows + kMost - 1) / kMost;
  std::int64_t row = 0;
  // Tiles of M rows, unless smaller ones are enough for what is left.
  const auto cover = [&]<int M, int Smaller>() {
    if constexpr (M <= kMost) {
      for (; rows - row >= M && rows - row > tiles * Smaller; row += M, --tiles) {
        work.template tile<Tile<M, V>>({}, row, vector);
      }
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

/// Covers `rows` rows of `count` vectors with calls of `work.tile<Tile<M, V>>({}, row, vector)`.
template <class Work>
void for_each_tile(std::int64_t rows, std::int64_t count, const Work& work) {
  for (std::int64_t vector = 0; vector < count; vector += kMaxVectors) {
    if (count - vector == 1) {
      tile_rows<1>(rows, vector, work);
    } else if (count - vector == 2) {
      tile_rows<2>(rows, vector, work);
    } else if (count - vector == 3) {
      tile_rows<3>(rows, vector, work);
    } else {
      tile_rows<4>(rows, vector, work);
    }
  }
}

/// Covers products of bf16 matrices with tiles: of AMX if this process may use it and the inner
/// dimension divides well, otherwise of AVX-512. AMX registers stay configured during its lifetime.
class TileCover {
 public:
  /// For products over inner dimensions of multiples of `inner`.
  explicit TileCover(std::int64_t inner) : pairs_(cpu_features().amx_bf16 ? amx_pairs(inner) : 0) {}
  ~TileCover() {
    if (rows_ != 0) AmxShapes::release();
  }
  TileCover(const TileCover&) = delete;
  TileCover& operator=(const TileCover&) = delete;

  /// Returns whether the pairs of a row of `a` must be adjacent.
  bool by_amx() const { return pairs_ != 0; }

  /// Returns the number of rows of the widest tiles.
  std::int64_t most_rows() const { return by_amx() ? 2 * AmxShapes::kMost : kTileRows; }
  /// Covers `rows` rows of `count` vectors with calls of `work.tile<Tile>(shapes, row, vector)`.
  template <class Work>
  void cover(std::int64_t rows, std::int64_t count, const Work& work) {
    if (!by_amx() || rows == 0) return for_each_tile(rows, count, work);
    const std::int64_t whole = rows / amx_rows(rows) * amx_rows(rows);
    cover_by_amx(amx_rows(rows), 0, whole, count, work);
    cover_by_amx(rows - whole, whole, rows, count, work);
  }

 private:
  static constexpr std::int64_t kFewestRows = 8;  // that are worth a register
  static constexpr std::int64_t kFewestPairs = 3;

  /// Returns the largest divisor of `count` that fits into a register, or 0 if it is below
  /// `fewest`.
  static std::int64_t divisor(std::int64_t count, std::int64_t fewest) {
    for (std::int64_t i = AmxShapes::kMost; i >= fewest; --i) {
      if (count % i == 0) return i;
    }
    return 0;
  }
  static std::int64_t amx_pairs(std::int64_t inner) {
    return inner % 2 == 0 ? divisor(inner / 2, kFewestPairs) : 0;
  }
  static std::int64_t amx_rows(std::int64_t rows) {
    if (rows <= AmxShapes::kMost) return rows;
    const std::int64_t found = divisor(rows, kFewestRows);
    return found == 0 ? AmxShapes::kMost : found;
  }

  template <class Work>
  void cover_by_amx(std::int64_t tile_rows, std::int64_t begin, std::int64_t end,
                    std::int64_t count, const Work& work) {
    if (begin == end) return;
    const AmxShapes shapes{tile_rows, pairs_};
    if (rows_ != tile_rows) shapes.configure();
    rows_ = tile_rows;
    for (std::int64_t vector = 0; vector < count; vector += kAmxVectors) {
      const bool one = count - vector == 1;
      std::int64_t row = begin;
      for (; end - row >= 2 * tile_rows; row += 2 * tile_rows) {
        one ? work.template tile<AmxTile<2, 1>>(shapes, row, vector)
            : work.template tile<AmxTile<2, 2>>(shapes, row, vector);
      }
      if (row == end) continue;
      one ? work.template tile<AmxTile<1, 1>>(shapes, row, vector)
          : work.template tile<AmxTile<1, 2>>(shapes, row, vector);
    }
  }

  std::int64_t pairs_;     // of AMX's registers, 0: it is not used
  std::int64_t rows_ = 0;  // of AMX's registers as they are set up, 0: not yet
};

}  // namespace mnist_train::models::avx512
