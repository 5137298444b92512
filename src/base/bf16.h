#pragma once

#include <cstdint>

namespace mnist_train {

// Arrays of bf16 values as bits, the upper half of a float. Arguments must not overlap.

void bf16_to_float(const std::uint16_t* from, std::int64_t count, float* to);
/// Rounds to nearest even; a NaN stays a NaN.
void float_to_bf16(const float* from, std::int64_t count, std::uint16_t* to);
/// Adds bf16 to floats.
void add_bf16(const std::uint16_t* from, std::int64_t count, float* to);

}  // namespace mnist_train
