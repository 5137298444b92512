#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "cpu_kernels/convolution_kernels.h"

namespace mnist_train::cpu_kernels {

/// Sizes of a convolution along one axis.
struct GatherAxis;

/// A plan of the sums of a convolution's forward pass or of the gradient of its input. Both gather:
/// for strides, each output pixel of the latter has the taps that reach it.
class GatherPlan {
 public:
  /// `depth`: channels of a word.
  GatherPlan(const ConvolutionShape& shape, bool backward, std::int64_t depth, bool by_amx);

  const GatherView& view() const { return view_; }
  /// Size of the packed weights in words.
  std::int64_t packed_words() const {
    return view_.groups * view_.panels * view_.panel_rows * view_.positions;
  }

  GatherPlan(const GatherPlan&) = delete;
  GatherPlan& operator=(const GatherPlan&) = delete;

 private:
  void add_rows(const GatherAxis& axis);
  void add_runs(const GatherAxis& axis, std::int64_t tap_words);
  const Sequence& sequence_of(std::int32_t first, std::int32_t count, std::int64_t tap_words);
  void add_tiles(const GatherAxis& axis);

  GatherView view_{};
  std::vector<std::int32_t> row_begin_, run_begin_;
  std::vector<Tap> rows_;
  std::vector<Run> runs_;
  std::vector<Sequence> sequences_;
  std::vector<DepthwiseTile> tiles_;
};

/// Division of the rows of blocks into parts that threads share. Sums over each part, added in
/// order, do not depend on the number of threads.
struct RowParts {
  std::int64_t rows;      // of a part, but the last one of a block
  std::int64_t of_block;  // parts
  std::int64_t height;    // of a block
};

/// Takes each part of the output while it is cached.
struct RowListener {
  /// Called once, when the first row of block 0 has been computed, before `take`.
  std::function<void()> begin;
  /// Called by any thread, once for each part.
  std::function<void(std::int64_t part, std::int64_t block, std::int64_t row_begin,
                     std::int64_t row_end)>
      take;

  void take_part(const RowParts& parts, std::int64_t part) const {
    const std::int64_t y = part % parts.of_block * parts.rows;
    take(part, part / parts.of_block, y, std::min(y + parts.rows, parts.height));
  }
};

/// A convolution over blocked images, forward and backward. Objects hold no tensors. Requires
/// is_supported<Element>().
template <class Element>
class Convolution {
 public:
  explicit Convolution(const ConvolutionShape& shape);

  const ConvolutionShape& shape() const { return shape_; }

  /// Sizes of the packed weights, in elements.
  std::int64_t packed_forward_size() const { return forward_.packed_words() * kDepth<Element>; }
  std::int64_t packed_backward_size() const { return backward_.packed_words() * kDepth<Element>; }

  /// Division of the output, or of the gradient of the input, for any number of blocks.
  RowParts forward_parts(std::int64_t blocks) const;
  RowParts backward_parts(std::int64_t blocks) const;
  /// Compute the output of all blocks (in: the input), or the gradient of the input (in: that of
  /// the output). `listener` may be null.
  void forward(const BatchOperands<Element>& operands, const RowListener* listener) const;
  void backward_data(const BatchOperands<Element>& operands, const RowListener* listener) const;

  /// Number of fp32 sums of the gradient of the weights.
  std::int64_t weight_sums() const {
    return shape_.is_depthwise() ? forward_.packed_words() : gradient_.sums();
  }
  /// Returns parts of a sum over `blocks` blocks whose copies fit into the L2 cache.
  std::vector<GradientBand> gradient_bands(std::int64_t blocks) const;
  /// Size of the scratch memory for any of the bands, in elements.
  std::int64_t gradient_scratch(const std::vector<GradientBand>& bands) const;
  /// Writes the gradient of the weights; `bands` may be those of more blocks.
  void weight_gradient(const std::vector<GradientBand>& bands,
                       const WeightGradientOperands<Element>& operands) const;

 private:
  void compute(const GatherView& view, const BatchOperands<Element>& operands,
               const RowListener* listener) const;
  void compute_panels(const GatherView& view, const BatchOperands<Element>& operands) const;
  void compute_rows(const GatherView& view, const BatchOperands<Element>& operands,
                    const RowListener* listener) const;
  void pack(const GatherView& view, const BatchOperands<Element>& operands) const;
  void pack_depthwise(const BatchOperands<Element>& operands) const;
  void depthwise_gradient(const WeightGradientOperands<Element>& operands) const;

  const ConvolutionKernels<Element>& kernels_;
  ConvolutionShape shape_;
  GatherPlan forward_, backward_;
  WeightGradientView gradient_;
};

}  // namespace mnist_train::cpu_kernels
