#pragma once

#include <bit>
#include <cstdint>

namespace mnist_train::fake_gpu {

/// A bf16 number: the upper half of a float.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounding = 0x7fff + ((word >> 16) & 1);  // to nearest, ties to even
    bits = static_cast<std::uint16_t>((word + rounding) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

}  // namespace mnist_train::fake_gpu
