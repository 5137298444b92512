#pragma once

#include <cstdint>

/// AMX registers of 16 rows of 64 bytes. GCC's intrinsics do not tell the compiler which memory
/// they access.
namespace mnist_train::cpu_kernels::amx {

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

/// Registers are configured during its lifetime: 0 to 3 hold sums, 4 and 5 rows of the first
/// factor, 6 and 7 pairs of the second.
class Registers {
 public:
  Registers() {
    struct alignas(64) {
      std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    } to;
    for (int i = 0; i < 8; ++i) {
      to.row_bytes[i] = 64;
      to.rows[i] = 16;
    }
    asm volatile("ldtilecfg (%0)" : : "r"(&to) : "memory");
  }
  ~Registers() { asm volatile("tilerelease" : : : "memory"); }
  Registers(const Registers&) = delete;
  Registers& operator=(const Registers&) = delete;
};

/// A rows of registers of 16 sums each by B columns of them. Rows of the factors are `a_row` and
/// `b_row` bytes apart.
template <int A, int B>
struct Sums {
  static void set_to_zero() {
    amx::set_to_zero<0>();
    if constexpr (B == 2) amx::set_to_zero<1>();
    if constexpr (A == 2) amx::set_to_zero<2>();
    if constexpr (A == 2 && B == 2) amx::set_to_zero<3>();
  }
  /// Adds the product of registers at `a` and `a2` and at `b`.
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

}  // namespace mnist_train::cpu_kernels::amx
