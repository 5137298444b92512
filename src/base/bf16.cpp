#include "base/bf16.h"

#include <bit>
#include <cmath>

namespace mnist_train {

// Not visible to other files, because Clang 14 cannot link cloned functions across files.
namespace {

MNIST_TRAIN_VECTORIZED void widen(const std::uint16_t* __restrict from, std::int64_t count,
                                  float* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16U);
  }
}

MNIST_TRAIN_VECTORIZED void round(const float* __restrict from, std::int64_t count,
                                  std::uint16_t* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
    to[i] = static_cast<std::uint16_t>(std::isnan(from[i]) ? 0x7fc0U : rounded);
  }
}

MNIST_TRAIN_VECTORIZED void add(const std::uint16_t* __restrict from, std::int64_t count,
                                float* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] += std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16U);
  }
}

}  // namespace

void bf16_to_float(const std::uint16_t* from, std::int64_t count, float* to) {
  widen(from, count, to);
}

void float_to_bf16(const float* from, std::int64_t count, std::uint16_t* to) {
  round(from, count, to);
}

void add_bf16(const std::uint16_t* from, std::int64_t count, float* to) { add(from, count, to); }

}  // namespace mnist_train
