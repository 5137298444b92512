#pragma once

#include <cstdint>
#include <vector>

#include "cpu_kernels/convolution_kernels.h"

namespace mnist_train::cpu_kernels {

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
  GatherPart all() const { return {0, view_.out.height, 0, view_.panels}; }

  GatherPlan(GatherPlan&&) = default;
  GatherPlan& operator=(GatherPlan&&) = default;
  GatherPlan(const GatherPlan&) = delete;
  GatherPlan& operator=(const GatherPlan&) = delete;

 private:
  struct Tap {
    std::int32_t in, kernel;
  };
  struct Axis {
    std::int64_t in, out, kernel, stride, padding, dilation;
  };

  static std::vector<Tap> taps(const Axis& axis, bool backward, std::int64_t position);
  void add_rows(const Axis& axis, bool backward);
  void add_runs(const Axis& axis, bool backward, std::int64_t tap_words, bool merges);
  std::int32_t sequence_of(const std::vector<std::int32_t>& columns, std::int64_t words);

  GatherView view_{};
  std::vector<std::int32_t> row_begin_, run_begin_, columns_;
  std::vector<RowTap> rows_;
  std::vector<Run> runs_;
  std::vector<Sequence> sequences_;
};

/// Memory strides, in elements, of the dimensions of weights.
struct WeightStrides {
  std::int64_t out, in, kernel_row, kernel_column;

  /// Of contiguous weights [out][in / groups][row][column].
  static WeightStrides contiguous(const ConvolutionShape& shape);
  /// Of weights in PyTorch's channels_last format.
  static WeightStrides channels_last(const ConvolutionShape& shape);
};

/// A convolution over blocked images, forward and backward. Objects hold no tensors. Requires
/// is_supported<Element>().
template <class Element>
class Convolution {
 public:
  explicit Convolution(const ConvolutionShape& shape);

  const ConvolutionShape& shape() const { return shape_; }
  const GatherPlan& forward_plan() const { return forward_; }
  const GatherPlan& backward_plan() const { return backward_; }

  /// Sizes of the packed weights, in elements.
  std::int64_t packed_forward_size() const { return forward_.packed_words() * kDepth<Element>; }
  std::int64_t packed_backward_size() const { return backward_.packed_words() * kDepth<Element>; }
  void pack_forward(const Element* weights, const WeightStrides& strides, Element* packed) const;
  void pack_backward(const Element* weights, const WeightStrides& strides, Element* packed) const;

  /// Compute part of one block: the output (operands.in: the input), or the gradient of the input
  /// (operands.in: that of the output).
  void forward(const GatherOperands<Element>& operands, const GatherPart& part) const;
  void backward_data(const GatherOperands<Element>& operands, const GatherPart& part) const;

  /// Number of fp32 sums of the gradient of the weights.
  std::int64_t weight_sums() const { return gradient_.sums(); }
  /// Returns parts of a sum over `blocks` blocks whose copies fit into the L2 cache.
  std::vector<GradientBand> gradient_bands(std::int64_t blocks) const;
  /// Size of the scratch memory for any of the bands, in elements.
  std::int64_t gradient_scratch(const std::vector<GradientBand>& bands) const;
  /// Adds a band's products to `sums`, which are zeros at first.
  void add_weight_gradient(const GradientBand& band, const Element* in, const Element* gradient,
                           Element* scratch, float* sums) const;
  /// Writes the gradient of the weights from its sums.
  void write_weight_gradient(const float* sums, const WeightStrides& strides,
                             Element* gradient) const;

 private:
  WeightsView<Element> weights_view(const Element* weights, const WeightStrides& strides,
                                    bool backward) const;

  const ConvolutionKernels<Element>& kernels_;
  ConvolutionShape shape_;
  GatherPlan forward_, backward_;
  WeightGradientView gradient_;
};

}  // namespace mnist_train::cpu_kernels
