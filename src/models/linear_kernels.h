#pragma once

#include <cstdint>

#include "models/convolution_shape.h"

namespace mnist_train::models {

/// A linear layer: x [batch,in], weights [out,in], bias [out] and y [batch,out].
struct LinearShape {
  std::int64_t batch, in, out;

  /// Of each of its three products.
  std::int64_t multiply_adds() const { return batch * in * out; }
};

/// CPU kernels for the three matrix products of a linear layer with all tensors bf16 or all f32.
/// Sums are f32. Each call computes a part of the result, so several threads can share it. Results
/// do not depend, to the bit, on that division, nor results of a sample on the other samples.
template <class Element>
struct LinearKernels {
  /// Sizes of the workspaces, in elements.
  struct LinearBufferSizes {
    std::int64_t packed_input;
    std::int64_t packed_gradient;
    std::int64_t packed_columns;
    std::int64_t data_columns;  // for one call of `backward_data`
  };
  /// Outputs per block of `forward`. Packed parts of inputs and gradients begin at multiples of it.
  static constexpr std::int64_t kOutputs = 32;
  /// Maximum columns of one call of `backward_data` or `pack_columns`; the latter begin at
  /// multiples of it.
  static constexpr std::int64_t kColumns = 64;

  LinearBufferSizes (*sizes)(const LinearShape& shape);
  /// Packs the columns `begin` to `end` of x for `forward`.
  void (*pack_input)(const LinearShape& shape, const Element* x, std::int64_t begin,
                     std::int64_t end, Element* packed);
  /// Writes the columns `begin` to `end` of y = x * weights^T + bias; `relu`: of max(y, 0).
  void (*forward)(const LinearShape& shape, const Element* packed, const Element* weights,
                  const Element* bias, bool relu, std::int64_t begin, std::int64_t end, Element* y);
  /// Writes the columns `begin` to `end` of the gradient of x: that of y times the weights.
  void (*backward_data)(const LinearShape& shape, const Element* gradient, const Element* weights,
                        std::int64_t begin, std::int64_t end, Element* buffer, Element* into);
  /// Pack the columns `begin` to `end` of the gradient of y, and of x, for `backward_weights`.
  void (*pack_gradient)(const LinearShape& shape, const Element* gradient, std::int64_t begin,
                        std::int64_t end, Element* packed);
  void (*pack_columns)(const LinearShape& shape, const Element* x, std::int64_t begin,
                       std::int64_t end, Element* packed);
  /// Writes the rows `begin` to `end` of the gradient of the weights: that of y, transposed, times
  /// x.
  void (*backward_weights)(const LinearShape& shape, const Element* packed_gradient,
                           const Element* packed_columns, std::int64_t begin, std::int64_t end,
                           Element* weights);
};

/// Return the kernels for AVX-512 with bf16 instructions, which use AMX for bf16 if available, or
/// null if the processor lacks these instructions.
const LinearKernels<Bf16Bits>* avx512_bf16_linear();
const LinearKernels<float>* avx512_f32_linear();

}  // namespace mnist_train::models
