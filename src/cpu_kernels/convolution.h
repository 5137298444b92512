#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/cpu.h"
#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

// Conversions between elements and fp32, for code that is a template of the element type.

inline void widen(const float* from, std::int64_t count, float* to) {
  std::copy_n(from, count, to);
}
inline void widen(const Bf16Bits* from, std::int64_t count, float* to) {
  bf16_to_float(from, count, to);
}
inline void round_to(const float* from, std::int64_t count, float* to) {
  std::copy_n(from, count, to);
}
inline void round_to(const float* from, std::int64_t count, Bf16Bits* to) {
  float_to_bf16(from, count, to);
}

/// Division of the rows of blocks into parts that threads share. Sums over each part, added in
/// order, do not depend on the number of threads.
struct RowParts {
  std::int64_t rows;      // of a part, but the last one of a block
  std::int64_t of_block;  // parts
  std::int64_t height;    // of a block
};

/// Takes each part of the output while it is cached.
struct RowListener {
  /// Called once, with the number of parts, when the first row of block 0 has been computed, before
  /// `take`.
  std::function<void(std::int64_t parts)> begin;
  /// Called by any thread, once for each part.
  std::function<void(std::int64_t part, std::int64_t block, std::int64_t row_begin,
                     std::int64_t row_end)>
      take;

  void take_part(const RowParts& parts, std::int64_t part) const {
    const std::int64_t y = part % parts.of_block * parts.rows;
    take(part, part / parts.of_block, y, std::min(y + parts.rows, parts.height));
  }
};

/// Sizes of a convolution along one axis.
struct GatherAxis;

/// The sums of a convolution's forward pass or of the gradient of its input. Both gather: for
/// strides, each output pixel of the latter has the taps that reach it.
template <class Element>
class Gather {
 public:
  Gather(const ConvolutionShape& shape, bool backward);
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;

  const GatherView& view() const { return view_; }
  /// Sizes of the packed weights, in words and in elements.
  std::int64_t packed_words() const {
    return view_.groups * view_.panels * view_.panel_rows * view_.positions;
  }
  std::int64_t packed_size() const { return packed_words() * kDepth<Element>; }
  /// Computes the output of all blocks. `listener` may be null.
  void compute(const BatchOperands<Element>& operands, const RowListener* listener) const;

 private:
  void add_rows(const GatherAxis& axis);
  void add_runs(const GatherAxis& axis);
  const Sequence& sequence_of(std::int32_t first, std::int32_t count);
  void add_tiles(const GatherAxis& axis);

  bool is_depthwise() const { return view_.depthwise.count > 0; }
  std::int64_t cached_rows() const;
  RowParts parts(std::int64_t blocks) const;
  bool multiplies_by_panels(std::int64_t blocks) const;
  bool reads_in_place(const BatchOperands<Element>& operands) const;
  void compute_panels(const BatchOperands<Element>& operands) const;
  void compute_rows(const BatchOperands<Element>& operands, const RowListener* listener) const;
  void pack(const BatchOperands<Element>& operands) const;
  void pack_depthwise(const BatchOperands<Element>& operands) const;

  const ConvolutionKernels<Element>& kernels_;
  GatherView view_{};
  std::vector<std::int32_t> row_begin_, run_begin_;
  std::vector<Tap> rows_;
  std::vector<Run> runs_;
  std::vector<Sequence> sequences_;
  std::vector<DepthwiseTile> tiles_;
};

/// A convolution over blocked images, forward and backward. Objects hold no tensors. Requires
/// is_supported<Element>().
template <class Element>
class Convolution {
 public:
  explicit Convolution(const ConvolutionShape& shape);

  /// Computes the output. `in` is the input.
  const Gather<Element>& forward() const { return forward_; }
  /// Computes the gradient of the input. `in` is that of the output.
  const Gather<Element>& backward() const { return backward_; }

  /// Number of fp32 sums of the gradient of the weights.
  std::int64_t weight_sums() const {
    return shape_.is_depthwise() ? forward_.packed_words() : gradient_.sums();
  }
  /// Size of the scratch memory for up to `blocks` blocks, in elements.
  std::int64_t gradient_scratch(std::int64_t blocks) const;
  /// Writes the gradient of the weights.
  void weight_gradient(const WeightGradientOperands<Element>& operands) const;

 private:
  std::vector<GradientBand> gradient_bands(std::int64_t blocks) const;
  void depthwise_gradient(const WeightGradientOperands<Element>& operands) const;

  const ConvolutionKernels<Element>& kernels_;
  ConvolutionShape shape_;
  Gather<Element> forward_, backward_;
  WeightGradientView gradient_;
};

}  // namespace mnist_train::cpu_kernels
