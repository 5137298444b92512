#pragma once

#include <cstdint>

#include "cpu_kernels/dropout.h"
#include "cpu_kernels/layout.h"

/// The kernels, and the plans that they execute: plain data, because the kernels' sources are
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
  /// Whether each input channel has output channels of its own.
  bool is_depthwise() const { return groups > 1 && groups == in.channels; }
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
  std::int32_t first, count;  // kernel columns, `tap_kernel` apart
};

/// Adjacent columns of the output of a depthwise convolution with the same taps. The columns of the
/// first tap of the first one are `in` and `kernel`.
struct DepthwiseTile {
  std::int32_t first, count;
  std::int32_t in, kernel, taps;
};
inline constexpr int kMostColumns = 4;  // of a tile

/// All tiles of a row, or none. Columns of a tile are `out_step` apart, those of their inputs
/// `in_step`, and those of the inputs of adjacent taps `tap_in`.
struct DepthwiseTiles {
  const DepthwiseTile* tiles;
  std::int64_t count;
  std::int64_t out_step, in_step, tap_in;
  std::int64_t words_at_once;
};

/// Sums of products of input words and weights: the forward pass of a convolution, or the gradient
/// of its input, whose input is the gradient of the output. Output row y sums over the taps
/// rows[row_begin[y]] to rows[row_begin[y + 1]], column x likewise over runs, or over the taps of a
/// tile if the convolution is depthwise.
///
/// Weights are packed as [group][panel][position][row of the panel], or for AMX as
/// [group][panel][position / 16][row][position % 16], in words. Panels of depthwise convolutions
/// are words of the layer's output, whose weights are fp32 [tap][channel of the word].
struct GatherView {
  ValueShape in, out;
  bool backward;
  std::int64_t layer_groups;
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
  std::int64_t tap_kernel;  // kernel columns between taps
  DepthwiseTiles depthwise;

  /// Panels of a group without rows beyond its outputs.
  std::int64_t complete_panels() const { return group_out / panel_rows; }
};

/// Memory strides, in elements, of the dimensions of weights.
struct WeightStrides {
  std::int64_t out, in, kernel_row, kernel_column;
};

/// Operands of a pass over the blocks of a batch. Pointers are to block 0.
template <class Element>
struct BatchOperands {
  std::int64_t blocks;
  const Element* in;
  const Element* weights;
  WeightStrides strides;
  Element* packed;        // memory for packed weights
  const float* bias;      // [out.channels], or null
  const Element* addend;  // like `out`, or null
  bool relu;
  Element* out;

  /// The strides of rows of panels and of the channels that are summed over.
  std::int64_t row_stride(bool backward) const { return backward ? strides.in : strides.out; }
  std::int64_t channel_stride(bool backward) const { return backward ? strides.out : strides.in; }
};

/// Packed panels from `begin` to `end`, counted over all groups. With `in_place`, complete panels
/// are read in the weights themselves, but for words that do not fill a register of AMX.
template <class Element>
struct PackedPanels {
  Element* at;
  std::int64_t begin, end;
  bool in_place;
};

/// Rows of the output of a block and panels of each group to compute.
struct GatherPart {
  std::int64_t block, row_begin, row_end, panel_begin, panel_end;
};

/// Rows of all blocks from `block_begin` to `block_end` whose products are summed in registers, and
/// the layout of their factors in scratch memory, in elements; see weight_gradient_avx512.h. The
/// first factor is a copy only for bf16.
struct GradientBand {
  std::int64_t block_begin, block_end, row_begin, row_end;
  bool replaces = false;  // the sums, rather than adding to them
  bool writes = false;    // the sums to the gradient of the weights: the last band

  std::int64_t in_begin = 0, in_rows = 0;  // input rows that the output rows need
  std::int64_t a_pixel = 0, a_block = 0;
  std::int64_t b_pixel = 0, b_word = 0, b_row = 0, b_block = 0;
  std::int64_t left = 0, right = 0;  // pixels of padding in the second factor
  std::int64_t b_begin = 0;          // after the copy of the first factor
  std::int64_t scratch = 0;          // size of the memory
  std::int64_t copied_rows = 0;      // of a block: of the input, then for bf16 of the gradient

  std::int64_t blocks() const { return block_end - block_begin; }
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

/// Operands of the gradient of the weights, of block 0.
template <class Element>
struct WeightGradientOperands {
  std::int64_t blocks;
  const Element* in;
  const Element* gradient;  // of the output
  Element* scratch;         // memory for a band of both
  float* sums;
  WeightStrides strides;
  Element* weight_gradient;
};

/// Of the lanes of a depthwise convolution's gradient, which sum over some pixels.
inline constexpr std::int64_t kLaneFloats = 16;

template <class Element>
struct ConvolutionKernels {
  /// Packs panels, unless the convolution is depthwise.
  void (*pack)(const GatherView& view, const BatchOperands<Element>& operands,
               const PackedPanels<Element>& panels);
  void (*gather)(const GatherView& view, const BatchOperands<Element>& operands,
                 const PackedPanels<Element>& panels, const GatherPart& part);
  /// Copies rows `begin` to `end` of all copied rows of a band to its scratch memory.
  void (*rearrange)(const WeightGradientView& view, const GradientBand& band,
                    const WeightGradientOperands<Element>& operands, std::int64_t begin,
                    std::int64_t end);
  /// Computes rows `begin` to `end` of the tiles of a rearranged band.
  void (*add_products)(const WeightGradientView& view, const GradientBand& band,
                       const WeightGradientOperands<Element>& operands, std::int64_t begin,
                       std::int64_t end);
  /// Rounds sums to the gradient of outputs `begin` to `end` of the layer.
  void (*write_gradient)(const WeightGradientView& view,
                         const WeightGradientOperands<Element>& operands, std::int64_t begin,
                         std::int64_t end);
  /// Computes the sums of words of the output of a depthwise convolution, in the order of its
  /// packed weights. The view is that of the forward pass. The scratch memory has kLaneFloats
  /// floats per weight.
  void (*depthwise_gradient)(const GatherView& view,
                             const WeightGradientOperands<Element>& operands,
                             std::int64_t word_begin, std::int64_t word_end);
};

// Kernels of other layers. Each call computes part of one block of images, so that threads can
// share blocks, and a band of rows that was just computed is still in the cache.

/// Consecutive pixels of a block. Constants and sums of channels have `padded_channels` elements.
struct PixelRange {
  std::int64_t pixels, channels;
  std::int64_t images;  // of the block that are samples; the others do not count in sums

  template <class Element>
  std::int64_t padded_channels() const {
    return words<Element>(channels) * kDepth<Element>;
  }
};

enum class Function {
  kRelu,
  kRelu6,
  kLeakyRelu,
  kHardsigmoid,
  kHardswish,
  kSigmoid,
  kTanh,
  kSilu,
  kGelu,
  kTanhGelu  // GELU with tanh in place of erf
};

/// An activation function as in PyTorch.
struct ActivationSpec {
  Function function = Function::kRelu;
  float negative_slope = 0.01F;  // of leaky ReLU

  /// Whether the gradient is computed from the output; otherwise from the input.
  bool differentiates_output() const {
    return function != Function::kHardswish && function != Function::kSilu &&
           function != Function::kGelu && function != Function::kTanhGelu &&
           (function != Function::kLeakyRelu || negative_slope >= 0);
  }
};

/// The limit of a ReLU without one.
inline constexpr float kNoLimit = __builtin_inff();

/// y = min(limit, relu((x - mean) * scale + bias + residual)); all after the bias is optional.
template <class Element>
struct NormalizeOperands {
  const Element* x;
  const float* mean;
  const float* scale;
  const float* bias;
  const Element* residual;  // null: none
  bool relu;
  float limit;  // of ReLU
  Element* y;
};

/// The gradient of the input of a normalization: with g = dy if 0 < y < limit or y is null,
/// otherwise 0, dx = scale * g + slope * (x - mean) + offset. dx may be any of the other tensors.
template <class Element>
struct NormalizeGradientOperands {
  const Element* dy;
  const Element* y;
  const Element* x;
  const float* mean;
  const float* scale;
  const float* slope;
  const float* offset;
  float limit;
  Element* dx;
  Element* residual;  // takes g, unless null; may be dy
};

/// An element of a window.
struct WindowTap {
  std::int64_t offset;    // of its pixel
  std::int32_t position;  // in the window
  float scale;            // of averages: one over the number of elements
};

/// Pooling: pixel i has the taps from `begin[i]` to below `begin[i + 1]`. Pixels are those of the
/// output and taps their windows' elements; or, for gradients, pixels are those of the input and
/// taps lead to the outputs whose windows contain them.
struct PoolingView {
  std::int64_t pixels, pixel_size;
  const std::int64_t* begin;
  const WindowTap* taps;
};

/// Strides, in elements, of images outside the engine.
struct PlainStrides {
  std::int64_t image, channel, row, column;
};

template <class Element>
struct LayerKernels {
  /// Adds sums per channel of x - shift, and after them of its squares.
  void (*add_statistics)(const PixelRange& range, const Element* x, const float* shift,
                         double* sums);
  void (*normalize)(const PixelRange& range, const NormalizeOperands<Element>& operands);
  /// Adds sums per channel of g, as in NormalizeGradientOperands, and of g * (x - mean). Without x,
  /// only the former.
  void (*add_gradient_sums)(const PixelRange& range, const Element* dy, const Element* y,
                            const Element* x, const float* mean, float limit, double* sums);
  /// Writes zeros for images that are no samples.
  void (*normalize_gradient)(const PixelRange& range,
                             const NormalizeGradientOperands<Element>& operands);
  /// y = a + b, then ReLU if `relu`.
  void (*add)(const PixelRange& range, const Element* a, const Element* b, bool relu, Element* y);
  /// dx = dy if y > 0, otherwise 0.
  void (*relu_gradient)(const PixelRange& range, const Element* dy, const Element* y, Element* dx);
  void (*activate)(const PixelRange& range, const ActivationSpec& activation, const Element* x,
                   Element* y);
  /// Writes the gradient of x from that of y and from one of them: `value` is y if
  /// `differentiates_output`, otherwise x.
  void (*activation_gradient)(const PixelRange& range, const ActivationSpec& activation,
                              const Element* dy, const Element* value, Element* dx);
  /// y = x * gate, for all pixels of a block. The gate has as many, or one if `is_pixel`. Also
  /// computes the gradient of x.
  void (*gate)(const PixelRange& range, const Element* x, const Element* gate, bool is_pixel,
               Element* y);
  /// Writes the gradient of a gate of one pixel from that of the product: the sum of dy * x.
  void (*gate_gradient)(const PixelRange& range, const Element* dy, const Element* x,
                        Element* gate);
  /// The range must be all pixels. Also computes the gradient.
  void (*drop)(const PixelRange& range, const Dropout& dropout, const Element* x, Element* y);

  /// `chosen` takes the position of each maximum in its window, a byte per element, 255 if `relu`
  /// and no element is positive. Like PyTorch's, it is the first of equal elements.
  void (*max_pool)(const PoolingView& view, const Element* x, bool relu, Element* y,
                   std::uint8_t* chosen);
  void (*max_pool_gradient)(const PoolingView& view, const Element* dy, const std::uint8_t* chosen,
                            Element* dx);
  void (*average_pool)(const PoolingView& view, const Element* x, Element* y);
  void (*average_pool_gradient)(const PoolingView& view, const Element* dy, Element* dx);

  /// Reorders images as a flatten does, or back.
  void (*flatten)(const ValueShape& shape, const Element* images, Element* vectors);
  void (*unflatten)(const ValueShape& shape, const Element* vectors, Element* images);

  /// Convert one block from and to plain images; images after `count` are zeros.
  void (*from_plain)(const ValueShape& shape, const Element* images, const PlainStrides& strides,
                     std::int64_t count, Element* block);
  void (*to_plain)(const ValueShape& shape, const Element* block, const PlainStrides& strides,
                   std::int64_t count, Element* images);
};

/// All kernels for elements of one type.
template <class Element>
struct KernelTable {
  ConvolutionKernels<Element> convolution;
  LayerKernels<Element> layers;
};

/// Returns the kernels for this CPU, or null if it lacks AVX-512 (fp32) or AVX512-BF16 (bf16).
template <class Element>
const KernelTable<Element>* kernel_table();
template <>
const KernelTable<float>* kernel_table();
template <>
const KernelTable<Bf16Bits>* kernel_table();

/// Returns whether this CPU can compute with elements of this type.
template <class Element>
bool is_supported() {
  return kernel_table<Element>() != nullptr;
}

}  // namespace mnist_train::cpu_kernels
