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
  ValueShape in, out;
  Extent kernel;
  Extent stride{1, 1};
  Extent padding{0, 0};  // above and to the left; `out` implies the rest
  Extent dilation{1, 1};
  std::int64_t groups = 1;

  std::int64_t group_in() const { return in.channels / groups; }
  std::int64_t group_out() const { return out.channels / groups; }
};

/// An input row or column and that of the kernel that an output row or column multiplies it by.
struct Tap {
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
  ValueShape in, out;
  std::int64_t groups, group_in, group_out;  // channels; groups may be fewer than the layer's
  std::int64_t panel_rows, panels;           // of outputs of a group
  std::int64_t positions;                    // of the inner dimension in a panel
  bool by_amx;
  const std::int32_t* row_begin;
  const Tap* rows;
  const std::int32_t* run_begin;
  const Run* runs;
  const Sequence* sequences;
  std::int64_t sequence_count, kernel_height, kernel_width;
  const std::int32_t* columns;

  /// Panels of a group without rows beyond its outputs.
  std::int64_t complete_panels() const { return group_out / panel_rows; }
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
  /// Weights [row][channel] whose rows are `row_step` elements apart, if complete panels read them
  /// in place. The rest of the weights is packed all the same.
  const Element* rows = nullptr;
  std::int64_t row_step = 0;
  std::int64_t packed_begin = 0;  // the panel, counted over all groups, at `packed`
};

/// Panels to pack, counted over all groups; the first one goes to `packed`. With `in_place`, only
/// weights that kernels do not read from `GatherOperands::rows`.
struct PackPart {
  std::int64_t begin, end;
  bool in_place;
};

/// Rows of the output and panels of each group to compute.
struct GatherPart {
  std::int64_t row_begin, row_end, panel_begin, panel_end;
};

/// Rows of all blocks from `block_begin` to `block_end` whose products are summed in registers.
struct GradientBand {
  std::int64_t block_begin, block_end, row_begin, row_end;
};

/// Memory strides, in elements, of the dimensions of weights.
struct WeightStrides {
  std::int64_t out, in, kernel_row, kernel_column;

  /// Of contiguous weights [out][in / groups][row][column].
  static WeightStrides contiguous(const ConvolutionShape& shape);
  /// Of weights in PyTorch's channels_last format.
  static WeightStrides channels_last(const ConvolutionShape& shape);
};

inline constexpr std::int64_t kImageGradientRows = 4;  // of sums, if vectors hold images

/// The gradient of weights, as sums [group][kernel row][output][column], where column
/// kx * column_run + c belongs to channel c of the group.
struct WeightGradientView {
  ConvolutionShape shape;  // with the groups that kernels see
  std::int64_t layer_groups;
  bool by_amx;
  bool by_images;           // vectors of images rather than of columns
  bool merges_columns;      // vectors may hold columns of several kernel columns
  std::int64_t column_run;  // columns of a kernel column
  std::int64_t columns;     // of a row of sums
  std::int64_t panel_rows;  // of sums that are computed at once
  std::int64_t rows;        // of sums of a group and kernel row

  std::int64_t sums() const { return shape.groups * shape.kernel.height * rows * columns; }
  float* sums_of(float* all, std::int64_t group, std::int64_t ky) const {
    return all + (group * shape.kernel.height + ky) * rows * columns;
  }
  /// Rows of a tile of sums.
  std::int64_t tile_rows() const { return by_amx ? 2 * panel_rows : panel_rows; }
  std::int64_t tiles_of_group() const { return ceil_divide(rows, tile_rows()); }
  /// Rows of tiles, each for one group and kernel row.
  std::int64_t tile_count() const { return shape.groups * shape.kernel.height * tiles_of_group(); }
};

/// The input and the gradient of the output of consecutive blocks, and memory for a band of both.
template <class Element>
struct GradientFactors {
  const Element* in;
  const Element* gradient;
  Element* scratch;
};

/// Where the products of a band go. Those of the first band replace the sums. Those of the last one
/// are added to the sums and rounded to `weights`, unless that is null.
template <class Element>
struct GradientTarget {
  float* sums;
  bool is_first;
  Element* weights;  // strides.in must be 1, and the view must have the groups of the layer
  WeightStrides strides;
};

template <class Element>
struct ConvolutionKernels {
  void (*pack)(const GatherView& view, const WeightsView<Element>& weights, const PackPart& part,
               Element* packed);
  void (*gather)(const GatherView& view, const GatherOperands<Element>& operands,
                 const GatherPart& part);
  /// Returns the size of the scratch memory for a band, in elements.
  std::int64_t (*gradient_scratch)(const WeightGradientView& view, const GradientBand& band);
  /// Returns the number of rows of a band that `rearrange` copies.
  std::int64_t (*gradient_rows)(const WeightGradientView& view, const GradientBand& band);
  /// Copies rows `begin` to `end` of a band to its scratch memory.
  void (*rearrange)(const WeightGradientView& view, const GradientBand& band,
                    const GradientFactors<Element>& factors, std::int64_t begin, std::int64_t end);
  /// Computes rows `begin` to `end` of the tiles of a rearranged band.
  void (*add_products)(const WeightGradientView& view, const GradientBand& band,
                       const GradientFactors<Element>& factors,
                       const GradientTarget<Element>& target, std::int64_t begin, std::int64_t end);
  /// Rounds sums to the gradient of outputs `begin` to `end` of the layer.
  void (*write_gradient)(const WeightGradientView& view, const float* sums,
                         const WeightStrides& strides, std::int64_t begin, std::int64_t end,
                         Element* weights);
};

}  // namespace mnist_train::cpu_kernels
