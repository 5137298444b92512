#pragma once

#include <cstdint>
#include <vector>

#include "cpu_kernels/depthwise_kernels.h"

namespace mnist_train::cpu_kernels {

/// Returns whether each input channel has output channels of its own.
inline bool is_depthwise(const ConvolutionShape& shape) {
  return shape.groups > 1 && shape.groups == shape.in.channels;
}

/// A plan of a depthwise convolution's forward pass or of the gradient of its input.
template <class Element>
class DepthwisePlan {
 public:
  DepthwisePlan(const ConvolutionShape& shape, bool backward);

  const DepthwiseView& view() const { return view_; }

  DepthwisePlan(DepthwisePlan&&) = default;
  DepthwisePlan& operator=(DepthwisePlan&&) = default;
  DepthwisePlan(const DepthwisePlan&) = delete;
  DepthwisePlan& operator=(const DepthwisePlan&) = delete;

 private:
  void add_rows(const ConvolutionShape& shape);
  void add_columns(const ConvolutionShape& shape);
  std::int64_t add_runs(const std::vector<Tap>& taps, std::int64_t pixel_size);
  void add_tiles(std::int64_t first, std::int64_t count, std::int64_t runs);

  DepthwiseView view_{};
  std::vector<std::int32_t> row_begin_;
  std::vector<DepthwiseTap> row_taps_;
  std::vector<DepthwiseRun> runs_;
  std::vector<DepthwiseTile> tiles_;
};

/// A depthwise convolution over blocked images: the part of Convolution that differs. Weights of
/// both directions and sums of their gradients have the same order.
template <class Element>
class Depthwise {
 public:
  explicit Depthwise(const ConvolutionShape& shape);

  /// Number of weights, with those of padding channels.
  std::int64_t weights() const {
    return words<Element>(shape_.out.channels) * kDepth<Element> * forward_.view().kernel_taps;
  }
  /// Size of the packed weights, which are fp32, in elements.
  std::int64_t packed_size() const { return weights() * kDepth<Element>; }
  /// Size of the scratch memory for the gradient of the weights, in elements.
  std::int64_t gradient_scratch() const { return packed_size() * kLaneFloats; }

  void pack(const Element* weights, const WeightStrides& strides, Element* packed) const;
  /// Computes part of the output of a block, or of the gradient of the input. Panels are words.
  void sum(bool backward, const GatherOperands<Element>& operands, const GatherPart& part) const {
    kernels_.sum((backward ? backward_ : forward_).view(), operands, part);
  }
  void weight_gradient(std::int64_t blocks, const GradientFactors<Element>& factors, float* sums,
                       const WeightStrides& strides, Element* gradient) const;

 private:
  /// Calls `action(index of a weight in memory, index in our order)` for words of outputs.
  template <class Action>
  void for_each_weight(const WeightStrides& strides, std::int64_t word_begin, std::int64_t word_end,
                       const Action& action) const;

  const DepthwiseKernels<Element>& kernels_;
  ConvolutionShape shape_;
  DepthwisePlan<Element> forward_, backward_;
};

}  // namespace mnist_train::cpu_kernels
