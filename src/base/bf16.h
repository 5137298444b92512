#pragma once

#include <cstdint>

namespace mnist_train {

// Vectors of bf16, the upper half of a 32-bit float, as their bits. Nothing may overlap.

void bf16_to_float(const std::uint16_t* from, std::int64_t count, float* to);
/// Rounds to the nearest bf16, of two equally near ones to the even one; a NaN stays one.
void float_to_bf16(const float* from, std::int64_t count, std::uint16_t* to);
/// Adds bf16 to floats.
void add_bf16(const std::uint16_t* from, std::int64_t count, float* to);

}  // namespace mnist_train
