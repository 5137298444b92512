#include "models/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <algorithm>

#include "cpu_kernels/dropout.h"

namespace mnist_train::models {

namespace {

constexpr std::int64_t kLow32 = 0xffffffff;

/// lowbias32 of values below 2^32 in an i64 tensor.
at::Tensor mix(at::Tensor bits) {
  constexpr std::int64_t kFactor1 = cpu_kernels::kHashFactor1;
  constexpr std::int64_t kFactor2 = cpu_kernels::kHashFactor2;
  bits = bits.bitwise_xor(bits.bitwise_right_shift(16));
  bits = (bits * kFactor1).bitwise_and(kLow32);
  bits = bits.bitwise_xor(bits.bitwise_right_shift(15));
  bits = (bits * kFactor2).bitwise_and(kLow32);
  return bits.bitwise_xor(bits.bitwise_right_shift(16));
}

}  // namespace

at::Tensor hashed_dropout(const at::Tensor& x, const at::Tensor& seeds, std::int64_t layer,
                          double p) {
  if (p == 0) return x;
  constexpr std::int64_t kIndexFactor = cpu_kernels::kIndexFactor;
  const std::int64_t elements = x.numel() / std::max<std::int64_t>(x.size(0), 1);
  const at::Tensor places =
      (at::arange(elements, seeds.options()) * kIndexFactor).bitwise_and(kLow32);
  const std::int64_t key = cpu_kernels::dropout_key(layer);
  const at::Tensor low = seeds.bitwise_and(kLow32).bitwise_xor(key).unsqueeze(1);
  const at::Tensor high = seeds.bitwise_right_shift(32).bitwise_and(kLow32).unsqueeze(1);
  const at::Tensor hash = mix((places + low).bitwise_and(kLow32)).bitwise_xor(high);
  const auto limit = static_cast<std::int64_t>(cpu_kernels::dropout_limit(p));
  const at::Tensor kept = (hash >= limit).to(x.scalar_type()).mul_(1 / (1 - p));
  return x * kept.view(x.sizes());
}

}  // namespace mnist_train::models
