#pragma once

#include <cstdint>

#include "models/bf16_convolution.h"

namespace mnist_train::models {

/// A linear layer: x [batch,in], weights [out,in], bias [out] and y [batch,out] are bf16, or f32
/// where that is said.
struct LinearShape {
  std::int64_t batch, in, out;

  /// Those of each of its three products.
  std::int64_t multiply_adds() const { return batch * in * out; }
};

/// CPU kernels for the three matrix products of a linear layer. Sums are fp32. Each call computes a
/// part of the result, so that several threads may share it; the parts' bits do not depend on it.
struct LinearKernels {
  /// How many elements of bf16 the buffers need that the kernels work in.
  struct LinearBufferSizes {
    std::int64_t packed_input;
    std::int64_t columns;      // for one call of `backward_data`
    std::int64_t f32_columns;  // of f32, for one call of `backward_weights_f32`
    std::int64_t input_pairs;
    std::int64_t gradient_pairs;
  };
  /// The outputs that `forward` and `backward_weights` take at a time.
  static constexpr std::int64_t kOutputs = 32;
  /// The columns of one call of `backward_data` or `backward_weights_f32`, at most.
  static constexpr std::int64_t kColumns = 64;

  LinearBufferSizes (*sizes)(const LinearShape& shape);
  /// Rearranges x for `forward`.
  void (*pack_input)(const LinearShape& shape, const Bf16Bits* x, Bf16Bits* packed);
  /// Writes the columns `begin` to `end` of y = x * weights^T + bias; `relu`: of max(y, 0).
  void (*forward)(const LinearShape& shape, const Bf16Bits* packed, const Bf16Bits* weights,
                  const Bf16Bits* bias, bool relu, std::int64_t begin, std::int64_t end,
                  Bf16Bits* y);
  /// Writes the columns from `begin` on of the gradient of x: the gradient of y times the weights.
  void (*backward_data)(const LinearShape& shape, const Bf16Bits* gradient, const Bf16Bits* weights,
                        std::int64_t begin, Bf16Bits* buffer, Bf16Bits* into);
  /// These two rearrange x and the gradient of y for `backward_weights`.
  void (*pair_input)(const LinearShape& shape, const Bf16Bits* x, Bf16Bits* pairs);
  void (*pair_gradients)(const LinearShape& shape, const Bf16Bits* gradient, Bf16Bits* pairs);
  /// Writes the rows `begin` to `end` of the gradient of the weights: that of y, transposed, times
  /// x.
  void (*backward_weights)(const LinearShape& shape, const Bf16Bits* gradient_pairs,
                           const Bf16Bits* input_pairs, std::int64_t begin, std::int64_t end,
                           Bf16Bits* weights);
  /// Writes the columns from `begin` on of the gradient of the weights, where all is f32.
  void (*backward_weights_f32)(const LinearShape& shape, const float* gradient, const float* input,
                               std::int64_t begin, float* buffer, float* weights);
};

/// Returns the kernels for AVX-512 with bf16 instructions, which use AMX where there is one, or
/// null where the processor lacks these instructions.
const LinearKernels* avx512_linear();

}  // namespace mnist_train::models
