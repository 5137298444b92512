#pragma once

// Only for sources that are compiled with AVX-512 switched on, like lanes_avx512.h.

#include "models/amx.h"
#include "models/tile_avx512.h"

namespace mnist_train::models::avx512 {

/// A times as many rows as the shapes have, of V vectors of sums, which are in AMX's registers
/// while products are added.
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
  /// Loads sums whose rows lie `step` floats apart, or stores them there.
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

  /// Fetches the cache lines of as many rows, `step` elements apart, which will be written to soon.
  [[gnu::always_inline]] void prefetch(const Bf16Bits* to, std::int64_t step) const {
    for (std::int64_t m = 0; m < A * shapes_.rows; ++m) __builtin_prefetch(to + m * step, 1);
  }

  /// Adds the product over an inner dimension of `size`, which is a multiple of the shapes' pairs.
  /// The pairs of a row of `a` lie side by side.
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

  /// Adds the product as `add` does. It fetches nothing: whether that helps was not measured here.
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

}  // namespace mnist_train::models::avx512
