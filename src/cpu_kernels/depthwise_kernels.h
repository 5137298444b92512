#pragma once

#include <cstdint>

#include "cpu_kernels/convolution_kernels.h"

/// What depthwise.cpp plans and kernels execute, as plain data.
namespace mnist_train::cpu_kernels {

/// A row of factors of a sum: offsets in elements of the input and in weights of the kernel.
struct DepthwiseTap {
  std::int64_t in, weight;
};

/// The first of adjacent columns of factors: each is `in_step` elements and `weight_step` weights
/// after the one before.
struct DepthwiseRun {
  std::int64_t in, weight, taps;
};
inline constexpr std::int64_t kMostTapsOfRun = 5;

/// Columns of the output with the same taps: `first` and others, `tile_step` columns apart. Inputs
/// of each are `in_step` elements after those of the one before.
struct DepthwiseTile {
  std::int32_t first, count;
  std::int32_t run_begin, run_end;
};
inline constexpr std::int32_t kMostColumns = 4;  // of a tile

/// Sums of a depthwise convolution: the forward pass, or the gradient of its input, whose input is
/// the gradient of the output. Pixels (y, x) of the output sum over the taps row_taps[row_begin[y]]
/// to row_taps[row_begin[y + 1]], and for each over the runs of the column's tile.
///
/// Weights are fp32 [word of the layer's output][tap][channel of the word].
struct DepthwiseView {
  ValueShape in, out;
  bool backward;
  std::int64_t multiple;  // output channels per input channel of the layer
  std::int64_t kernel_taps;
  std::int64_t tile_step, in_step, weight_step;
  std::int64_t part_words;  // that are computed at once
  const std::int32_t* row_begin;
  const DepthwiseTap* row_taps;
  const DepthwiseTile* tiles;
  std::int64_t tile_count;
  const DepthwiseRun* runs;
};

/// Pixels whose products are summed in fp32 lanes.
inline constexpr std::int64_t kLanePixels = 128;
inline constexpr std::int64_t kLaneFloats = 16;

template <class Element>
struct DepthwiseKernels {
  /// Computes rows of the output of one block; panels of the part are words.
  void (*sum)(const DepthwiseView& view, const GatherOperands<Element>& operands,
              const GatherPart& part);
  /// Computes the gradient of the weights of words of the output, in the order of the weights. The
  /// view is that of the forward pass. The scratch memory has kLaneFloats floats per weight.
  void (*weight_gradient)(const DepthwiseView& view, std::int64_t blocks,
                          const GradientFactors<Element>& factors, std::int64_t word_begin,
                          std::int64_t word_end, float* sums);
};

}  // namespace mnist_train::cpu_kernels
