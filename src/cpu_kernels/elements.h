#pragma once

#include <algorithm>

#include "base/cpu.h"
#include "cpu_kernels/layout.h"

/// Conversions between elements and fp32, for code that is a template of the element type.
namespace mnist_train::cpu_kernels {

inline void widen(const float* from, std::int64_t count, float* to) {
  std::copy_n(from, count, to);
}
inline void widen(const Bf16Bits* from, std::int64_t count, float* to) {
  bf16_to_float(from, count, to);
}
inline void round_to(const float* from, std::int64_t count, float* to) {
  std::copy_n(from, count, to);
}
inline void round_to(const float* from, std::int64_t count, Bf16Bits* to) {
  float_to_bf16(from, count, to);
}

}  // namespace mnist_train::cpu_kernels
