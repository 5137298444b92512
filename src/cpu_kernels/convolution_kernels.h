#pragma once

#include <cstdint>

#include "cpu_kernels/layout.h"

/// What convolution.cpp plans and kernels execute. Plain data, because the kernels' sources are
/// compiled for particular CPUs.
namespace mnist_train::cpu_kernels {

struct Extent {
  std::int64_t height, width;
};

/// A convolution with weights [out][in / groups][kernel.height][kernel.width].
struct ConvolutionShape {
  ImageShape in, out;
  Extent kernel;
  Extent stride{1, 1};
  Extent padding{0, 0};  // above and to the left; `out` implies the rest
  Extent dilation{1, 1};
  std::int64_t groups = 1;

  std::int64_t group_in() const { return in.channels / groups; }
  std::int64_t group_out() const { return out.channels / groups; }
};

/// An input row and the row of the kernel that an output row multiplies it by.
struct RowTap {
  std::int32_t in, kernel;
};

/// Adjacent input words that an output column multiplies by adjacent packed weights.
struct Run {
  std::int32_t in;     // column of the first word
  std::int32_t words;  // of the inner dimension
  std::int32_t start;  // packed position of the weights for row 0 of the kernel
  std::int32_t step;   // to those for the next row
};

/// Kernel columns that are packed one after the other, as some runs need them.
struct Sequence {
  std::int32_t start, step;   // as in Run
  std::int32_t first, count;  // of `columns`
};

/// Sums of products of input words and weights: the forward pass of a convolution, or the gradient
/// of its input, whose input is the gradient of the output. Output row y sums over the taps
/// rows[row_begin[y]] to rows[row_begin[y + 1]], column x likewise over runs.
///
/// Weights are packed as [group][panel][position][row of the panel], or for AMX as
/// [group][panel][position / 16][row][position % 16], in words.
struct GatherView {
  ImageShape in, out;
  std::int64_t groups, group_in, group_out;  // channels; groups may be fewer than the layer's
  std::int64_t panel_rows, panels;           // of outputs of a group
  std::int64_t positions;                    // of the inner dimension in a panel
  bool by_amx;
  const std::int32_t* row_begin;
  const RowTap* rows;
  const std::int32_t* run_begin;
  const Run* runs;
  const Sequence* sequences;
  std::int64_t sequence_count, kernel_height;
  const std::int32_t* columns;
};

/// Weights in memory: strides, in elements, of the rows of panels, of the channels that are summed
/// over, and of kernel rows and columns.
template <class Element>
struct WeightsView {
  const Element* data;
  std::int64_t row, channel, kernel_row, kernel_column;
  std::int64_t layer_rows, layer_channels;  // of a group of the layer
  bool rows_are_out;                        // the leading dimension, which spans all groups
};

/// One block of images.
template <class Element>
struct GatherOperands {
  const Element* in;
  const Element* packed;
  const float* bias;      // [out.channels], or null
  const Element* addend;  // like `out`, or null
  bool relu;
  Element* out;
};

/// Rows of the output and panels of each group to compute.
struct GatherPart {
  std::int64_t row_begin, row_end, panel_begin, panel_end;
};

/// Rows of all blocks from `block_begin` to `block_end` whose products are summed in registers.
struct GradientBand {
  std::int64_t block_begin, block_end, row_begin, row_end;
};

/// The gradient of weights, as sums [group][kernel row][output][column], where column
/// kx * column_run + c belongs to channel c of the group.
struct WeightGradientView {
  ConvolutionShape shape;  // with the groups that kernels see
  bool by_amx;
  bool merges_columns;      // vectors may hold columns of several kernel columns
  std::int64_t column_run;  // columns of a kernel column
  std::int64_t columns;     // of a row of sums
  std::int64_t panel_rows;  // of sums that are computed at once
  std::int64_t rows;        // of sums of a group and kernel row

  std::int64_t sums() const { return shape.groups * shape.kernel.height * rows * columns; }
  float* sums_of(float* all, std::int64_t group, std::int64_t ky) const {
    return all + (group * shape.kernel.height + ky) * rows * columns;
  }
};

template <class Element>
struct ConvolutionKernels {
  void (*pack)(const GatherView& view, const WeightsView<Element>& weights, Element* packed);
  void (*gather)(const GatherView& view, const GatherOperands<Element>& operands,
                 const GatherPart& part);
  /// Returns the size of the scratch memory for a band, in elements.
  std::int64_t (*gradient_scratch)(const WeightGradientView& view, const GradientBand& band);
  /// Adds the products of a band to the sums. Blocks of `in` and `gradient` are consecutive.
  void (*add_weight_gradient)(const WeightGradientView& view, const GradientBand& band,
                              const Element* in, const Element* gradient, Element* scratch,
                              float* sums);
  /// Rounds sums to the element type.
  void (*round)(const float* sums, std::int64_t count, Element* to);
};

}  // namespace mnist_train::cpu_kernels
