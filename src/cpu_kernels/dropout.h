#pragma once

#include <cstdint>

#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

/// Returns the key of a layer, which is mixed into the lower keys of images.
inline std::uint32_t dropout_key(std::int64_t number) {
  std::uint32_t bits = static_cast<std::uint32_t>(number) * kIndexFactor + 1;
  bits = (bits ^ (bits >> 16)) * kHashFactor1;
  bits = (bits ^ (bits >> 15)) * kHashFactor2;
  return bits ^ (bits >> 16);
}
/// Returns `Dropout::limit` for probability `p`.
inline std::uint64_t dropout_limit(double p) {
  return static_cast<std::uint64_t>(__builtin_llround(p * 0x1p32));
}

/// Returns the dropout with probability `p` for layer `number` and `count` samples with these
/// seeds.
inline Dropout make_dropout(std::int64_t number, double p, const std::int64_t* seeds,
                            std::int64_t count) {
  Dropout dropout{};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<std::uint64_t>(seeds[i]);
    dropout.low[i] = static_cast<std::uint32_t>(bits) ^ dropout_key(number);
    dropout.high[i] = static_cast<std::uint32_t>(bits >> 32);
  }
  dropout.limit = dropout_limit(p);
  dropout.scale = static_cast<float>(1 / (1 - p));
  return dropout;
}

}  // namespace mnist_train::cpu_kernels
