#pragma once

#include <cstdint>

namespace mnist_train::model {

/// One output row of `relu_max_pool`, channels last, values given by their bits: int32 for fp32,
/// int16 for bf16. Positive floats are ordered as their bits are and negative ones are negative
/// integers, so ReLU and maximum are integer maxima; NaNs of both signs count as the largest.
template <class Bits>
struct PoolRows {
  /// Reads 2 * width * channels of the input rows `top` and `bottom`; writes width * channels
  /// values and `choice`s: which of the four was taken (0, 1 above; 2, 3 below; the first of equal
  /// ones), or 4 for none (all <= 0).
  void (*pool)(const Bits* top, const Bits* bottom, Bits* out, std::uint8_t* choice,
               std::int64_t width, std::int64_t channels);
  /// Backward: writes 2 * width * channels of `top` and of `bottom`, the gradient where `choice`
  /// says, 0 elsewhere.
  void (*spread)(const Bits* gradient, const std::uint8_t* choice, Bits* top, Bits* bottom,
                 std::int64_t width, std::int64_t channels);
};

/// For any processor.
template <class Bits>
const PoolRows<Bits>& portable_pool_rows();
template <>
const PoolRows<std::int32_t>& portable_pool_rows();
template <>
const PoolRows<std::int16_t>& portable_pool_rows();

/// For processors with AVX-512 (F, BW, VL); null on others.
template <class Bits>
const PoolRows<Bits>* avx512_pool_rows();
template <>
const PoolRows<std::int32_t>* avx512_pool_rows();
template <>
const PoolRows<std::int16_t>* avx512_pool_rows();

/// What this processor runs fastest.
template <class Bits>
const PoolRows<Bits>& pool_rows() {
  static const PoolRows<Bits>* const fastest = avx512_pool_rows<Bits>();
  return fastest != nullptr ? *fastest : portable_pool_rows<Bits>();
}

}  // namespace mnist_train::model
