#pragma once

// Only for sources that are compiled with AVX-512 switched on, like lanes_avx512.h.

#include <cstdint>

/// Products of bf16 matrices by AMX, whose registers hold up to 16 rows of 64 bytes.
namespace mnist_train::models::avx512 {

// GCC's own functions for these do not tell the compiler which memory they read.
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

/// What the registers hold: 0 to 3 sums, 4 and 5 rows of `a`, 6 and 7 pairs of `b`.
struct AmxShapes {
  static constexpr std::int64_t kMost = 16;

  std::int64_t rows;   // of sums and of `a`, at most kMost
  std::int64_t pairs;  // of the inner dimension that are multiplied at a time, at most kMost

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

}  // namespace mnist_train::models::avx512
