#include "cpu_kernels/dropout.h"

#include <cmath>

namespace mnist_train::cpu_kernels {

namespace {

std::uint32_t mix(std::uint32_t bits) {
  bits ^= bits >> 16;
  bits *= kHashFactor1;
  bits ^= bits >> 15;
  bits *= kHashFactor2;
  return bits ^ (bits >> 16);
}

}  // namespace

std::uint32_t dropout_key(std::int64_t number) {
  return mix(static_cast<std::uint32_t>(number) * kIndexFactor + 1);
}

std::uint64_t dropout_limit(double p) {
  return static_cast<std::uint64_t>(std::llround(p * 0x1p32));
}

Dropout make_dropout(std::int64_t number, double p, const std::int64_t* seeds, std::int64_t count) {
  Dropout dropout{};
  const std::uint32_t key = dropout_key(number);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<std::uint64_t>(seeds[i]);
    dropout.low[i] = static_cast<std::uint32_t>(bits) ^ key;
    dropout.high[i] = static_cast<std::uint32_t>(bits >> 32);
  }
  dropout.limit = dropout_limit(p);
  dropout.scale = static_cast<float>(1 / (1 - p));
  return dropout;
}

}  // namespace mnist_train::cpu_kernels
