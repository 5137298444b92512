#pragma once

#include <cstdint>

/// The activation layout, the kernels, and the plans that they execute. Plans are plain data,
/// because the kernel sources must not use the standard library (see kernels_avx512.cpp).
namespace mnist_train::cpu_kernels {

// Activations are stored as [block of 32 images][y][x][word][image][channel of a word]. A word is 4
// bytes: one fp32 channel or two bf16 channels. Words and images thus have the same strides in
// bytes for both types. One word of all 32 images fills two AVX-512 vectors; 16 fill two AMX tiles.

using Bf16Bits = std::uint16_t;  // bit pattern of a bf16

constexpr float to_float(float element) { return element; }
constexpr float to_float(Bf16Bits element) {
  return __builtin_bit_cast(float, std::uint32_t{element} << 16U);
}

inline constexpr std::int64_t kImages = 32;   // per block
inline constexpr std::int64_t kMinParts = 8;  // per batch, for threads

/// Channels per word.
template <class Element>
inline constexpr std::int64_t kDepth = 4 / sizeof(Element);
/// Elements in one word for all images of a block.
template <class Element>
inline constexpr std::int64_t kWordSize = kImages* kDepth<Element>;
/// Words per channel of a block, if words hold images instead of channels.
template <class Element>
inline constexpr std::int64_t kImageWords = kImages / kDepth<Element>;

constexpr std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_divide(a, b) * b; }

template <class Element>
constexpr std::int64_t words(std::int64_t channels) {
  return ceil_divide(channels, kDepth<Element>);
}

/// Number of bytes after the last block of activations that kernels may read. They do not affect
/// results, but must be finite numbers, because AMX multiplies them by zeros.
inline constexpr std::int64_t kSlackBytes = std::int64_t{16} * 128;

/// Shape of a layer's images.
struct ValueShape {
  std::int64_t channels, height, width;

  bool operator==(const ValueShape&) const = default;
  std::int64_t pixels() const { return height * width; }
  std::int64_t elements() const { return channels * pixels(); }
  /// Elements per pixel in a block of images; `block_size` covers all pixels.
  template <class Element>
  std::int64_t pixel_size() const {
    return words<Element>(channels) * kWordSize<Element>;
  }
  template <class Element>
  std::int64_t block_size() const {
    return pixels() * pixel_size<Element>();
  }
};

// Convolutions.

struct Extent {
  std::int64_t height, width;
};

/// A convolution. Its weights are [out][kernel.height][kernel.width][in] (PyTorch's channels_last).
/// In a depthwise convolution, each output channel has one input channel.
struct ConvolutionShape {
  ValueShape in, out;
  Extent kernel;
  Extent stride{1, 1};
  Extent padding{0, 0};  // top and left; `out` determines the rest
  bool depthwise = false;
};

/// An input row or column, and the kernel row or column that multiplies it.
struct Tap {
  std::int32_t in, kernel;
};

/// Consecutive input words that are multiplied by consecutive packed weights for an output column.
struct Run {
  std::int32_t in;     // column of the first word
  std::int32_t words;  // along the inner dimension
  std::int32_t start;  // packed position of the weights for kernel row 0
  std::int32_t step;   // to the weights for the next row
};

/// Kernel columns that are packed consecutively, as some runs require.
struct Sequence {
  std::int32_t start, step;   // as in Run
  std::int32_t first, count;  // kernel columns, `tap_kernel` apart
};

/// Evenly spaced output columns of a depthwise convolution with the same kernel columns. `in` and
/// `kernel` are the input and kernel columns of the first tap of column `first`.
struct DepthwiseTile {
  std::int32_t first, count;
  std::int32_t in, kernel, taps;
};
inline constexpr int kMaxColumns = 4;  // per tile

/// All tiles of a row; empty unless depthwise. Successive columns of a tile are `out_step` apart in
/// the output and `in_step` apart in the input.
struct DepthwiseTiles {
  const DepthwiseTile* tiles;
  std::int64_t count;
  std::int64_t out_step, in_step;
  std::int64_t words_per_pass;
};

/// Maximum number of outputs along an axis of a tile of Winograd's algorithm. Larger tiles need
/// fewer products, but have larger rounding errors, which disappear if outputs are rounded to bf16.
template <class Element>
inline constexpr std::int64_t kTileOutputs = kDepth<Element> == 1 ? 2 : 4;

/// Returns the number of tiles along an axis with this many outputs.
template <class Element>
constexpr std::int64_t winograd_tiles(std::int64_t outputs) {
  return ceil_divide(outputs, kTileOutputs<Element>);
}

/// Returns the number of inputs, which is that of positions, along an axis of a tile.
constexpr std::int64_t winograd_side(std::int64_t outputs) { return outputs + 2; }
/// Returns how many tiles along an axis with this many outputs have a position. They come first,
/// because only the last tile can be smaller than `tile_side`.
constexpr std::int64_t tiles_with_position(std::int64_t outputs, std::int64_t position,
                                           std::int64_t tile_side) {
  const std::int64_t required_outputs = position < 3 ? 1 : position - 1;
  const std::int64_t tile_outputs = tile_side - 2;
  return (outputs - required_outputs + tile_outputs) / tile_outputs;
}
template <class Element>
inline constexpr std::int64_t kTileSide = winograd_side(kTileOutputs<Element>);
template <class Element>
inline constexpr std::int64_t kTilePositions = kTileSide<Element>* kTileSide<Element>;

/// Floats between the data of two positions, which would otherwise map to few cache sets.
inline constexpr std::int64_t kPositionPadding = 16;

/// Parameters of Winograd's algorithm for a convolution. Sizes are in floats.
struct WinogradView {
  std::int64_t tiles_per_pass = 0;  // 0 if the algorithm is not used
  std::int64_t top = 0, left = 0;   // padding
  std::int64_t position_size = 0;   // distance between positions of a transformed tile
  std::int64_t tile_size = 0;
};

/// Plan for the forward pass of a convolution or for its input gradient, in which `in` is the
/// gradient of the output. For output row y, sums cover the taps rows[row_begin[y]] to
/// rows[row_begin[y + 1]] (exclusive); for column x, they cover runs in the same way or, in a
/// depthwise convolution, the taps of a tile.
///
/// Weights are packed in words as [panel][position][row of the panel], or for AMX as
/// [panel][position / 16][row][position % 16]. In depthwise convolutions a panel is a word of the
/// output, with fp32 weights [tap][channel of the word]. For Winograd's algorithm, weights are
/// fp32, and positions are those of a transformed tile, each with `padded_channels` input channels.
struct GatherView {
  ValueShape in, out;
  bool backward;
  std::int64_t panel_rows, panels;  // rows are output channels
  std::int64_t positions;           // inner dimension of a panel
  bool uses_amx;
  const std::int32_t* row_begin;
  const Tap* rows;
  const std::int32_t* run_begin;
  const Run* runs;
  const Sequence* sequences;
  std::int64_t sequence_count, kernel_height, kernel_width;
  std::int64_t tap_kernel;  // kernel columns between taps
  DepthwiseTiles depthwise;
  WinogradView winograd;

  /// Number of consecutive weights in memory: the layer's input channels.
  std::int64_t layer_inputs() const { return backward ? out.channels : in.channels; }
  /// Number of input channels per position in Winograd's algorithm. It is odd, because positions
  /// would otherwise map to few cache sets.
  std::int64_t padded_channels() const { return in.channels | 1; }
  /// Number of panels without padding rows.
  std::int64_t complete_panels() const { return out.channels / panel_rows; }
};

/// Operands of a pass over the blocks of a batch. Pointers refer to block 0.
template <class Element>
struct BatchOperands {
  std::int64_t blocks;
  std::int64_t last_images;  // samples in the last block
  const Element* in;
  const Element* weights;
  Element* packed;        // buffer for packed weights
  const Element* bias;    // [out.channels], or null
  const Element* addend;  // like `out`, or null
  bool relu;
  Element* out;
};

/// Packed panels `begin` to `end`. With `in_place`, complete panels are read directly from the
/// weights, except for words that do not fill an AMX register.
template <class Element>
struct PackedPanels {
  Element* data;
  std::int64_t begin, end;
  bool in_place;
};

/// The output rows and panels of a block to compute.
struct GatherPart {
  std::int64_t block, row_begin, row_end, panel_begin, panel_end;
  float* scratch = nullptr;  // for the transformed inputs of Winograd's algorithm
};

/// Output rows of blocks `block_begin` to `block_end` whose products are summed in one pass, and
/// the layout of their factors in scratch memory (in elements); see weight_gradient_avx512.h. The
/// first factor is copied only for bf16; for Winograd's algorithm, both are transformed.
struct GradientBand {
  std::int64_t block_begin, block_end, row_begin, row_end;
  bool overwrites = false;  // first band: overwrites the sums instead of adding to them
  bool writes = false;      // last band: writes the sums to the weight gradient

  std::int64_t in_begin = 0, in_rows = 0;  // input rows that the output rows need
  std::int64_t a_pixel = 0, a_block = 0;
  std::int64_t b_pixel = 0, b_word = 0, b_row = 0, b_block = 0;
  std::int64_t left = 0, right = 0;  // padding pixels in the second factor
  std::int64_t b_begin = 0;          // follows the copy of the first factor, if any
  std::int64_t scratch = 0;          // total size
  std::int64_t copied_rows = 0;      // per block, of the input and, for bf16, of the gradient

  // Used by Winograd's algorithm, whose factors are transformed tiles, and whose rows are those of
  // tiles.
  std::int64_t tile_side = 0;  // positions along an axis
  Extent outputs{0, 0};        // rows and columns of the convolution's outputs
  std::int64_t a_begin = 0;
  std::int64_t a_position = 0, b_position = 0;

  std::int64_t blocks() const { return block_end - block_begin; }
};

/// Returns the maximum number of rows of sums to compute at once if each row has `vectors` (1 to 3)
/// vectors, so that the sums and their factors fit into the 32 registers.
constexpr std::int64_t max_panel_rows(std::int64_t vectors) {
  constexpr std::int64_t kMax[] = {16, 14, 8};
  return kMax[vectors - 1];
}

inline constexpr std::int64_t kImageGradientRows = 4;  // rows of sums if vectors hold images

/// Layout of the weight gradient, as sums [kernel row][output][column]. Column kx * column_stride +
/// c belongs to kernel column kx and channel c.
struct WeightGradientView {
  ConvolutionShape shape;
  bool uses_amx;
  bool uses_winograd;
  bool image_lanes;            // lanes of sums are images instead of columns
  bool merges_columns;         // vectors may span several kernel columns
  std::int64_t column_stride;  // columns per kernel column
  std::int64_t columns;        // per row of sums
  std::int64_t tile_vectors;   // maximum number of vectors of columns computed at once
  std::int64_t panel_rows;     // rows of sums computed at once
  std::int64_t rows;           // rows of sums per kernel row

  std::int64_t sums() const { return shape.kernel.height * row_step(); }
  float* row_sums(float* all, std::int64_t ky) const { return all + ky * row_step(); }
  std::int64_t row_step() const { return rows * columns + kPositionPadding; }  // in floats
  /// Rows of sums in a tile.
  std::int64_t rows_per_tile() const { return uses_amx ? 2 * panel_rows : panel_rows; }
  std::int64_t tile_rows_per_kernel_row() const { return ceil_divide(rows, rows_per_tile()); }
  /// Number of rows of tiles, each of which belongs to one kernel row.
  std::int64_t tile_rows() const { return shape.kernel.height * tile_rows_per_kernel_row(); }
};

/// Operands of the weight gradient. Pointers refer to block 0.
template <class Element>
struct WeightGradientOperands {
  std::int64_t blocks;
  std::int64_t last_images;  // samples in the last block
  const Element* in;
  const Element* gradient;  // of the output
  Element* scratch;         // for the factors of a band or, if depthwise, partial sums
  float* sums;
  Element* weight_gradient;
};

template <class Element>
struct Band {
  const WeightGradientView& view;
  const GradientBand& part;
  const WeightGradientOperands<Element>& operands;
};

/// Partial sums per weight in the gradient of a depthwise convolution: one per lane.
inline constexpr std::int64_t kLaneFloats = 16;

template <class Element>
struct ConvolutionKernels {
  /// Packs panels. Not for depthwise convolutions.
  void (*pack)(const GatherView& view, const BatchOperands<Element>& operands,
               const PackedPanels<Element>& panels);
  void (*gather)(const GatherView& view, const BatchOperands<Element>& operands,
                 const PackedPanels<Element>& panels, const GatherPart& part);
  /// Copies rows `begin` to `end` of a band's blocks() * copied_rows rows to its scratch memory.
  void (*rearrange)(const Band<Element>& band, std::int64_t begin, std::int64_t end);
  /// For Winograd: transforms tiles `begin` to `end` of a rearranged band into factors of `tiles`.
  void (*transform_tiles)(const Band<Element>& band, const GradientBand& tiles, std::int64_t begin,
                          std::int64_t end);
  /// Computes rows of tiles `begin` to `end` of a rearranged band.
  void (*add_products)(const Band<Element>& band, std::int64_t begin, std::int64_t end);
  /// For Winograd's algorithm: transforms the sums of `tiles` into the weight gradient of output
  /// channels `begin` to `end`.
  void (*transform_sums)(const WeightGradientView& tiles,
                         const WeightGradientOperands<Element>& operands, std::int64_t begin,
                         std::int64_t end);
  /// Computes the weight gradient's sums for output words of a depthwise convolution, in the order
  /// of its packed weights. `view` is that of the forward pass. The scratch memory has kLaneFloats
  /// floats per weight.
  void (*depthwise_gradient)(const GatherView& view,
                             const WeightGradientOperands<Element>& operands,
                             std::int64_t word_begin, std::int64_t word_end);
};

// Kernels for other layers. Each call processes one block of images or part of it, so that threads
// can split blocks, and rows can be processed while they are still cached.

/// Consecutive pixels of a block. Per-channel constants and sums have `padded_channels` elements.
struct PixelRange {
  std::int64_t pixels, channels;
  std::int64_t images;  // samples in the block; sums exclude padding images

  template <class Element>
  std::int64_t padded_channels() const {
    return round_up(channels, kDepth<Element>);
  }
};

enum class Function { kRelu, kRelu6, kLeakyRelu, kSigmoid, kTanh, kSilu, kGelu };

/// An activation function as in PyTorch.
struct ActivationSpec {
  Function function = Function::kRelu;
  float negative_slope = 0.01F;  // of leaky ReLU

  /// Returns whether the gradient is computed from the output instead of the input.
  bool differentiates_output() const {
    return function != Function::kSilu && function != Function::kGelu &&
           (function != Function::kLeakyRelu || negative_slope >= 0);
  }
};

/// `limit` of a ReLU without an upper limit.
inline constexpr float kNoLimit = __builtin_inff();

/// y = min(limit, relu((x - mean) * scale + bias + residual)); min, ReLU and residual are optional.
template <class Element>
struct NormalizeOperands {
  const Element* x;
  const float* mean;
  const float* scale;
  const float* bias;
  const Element* residual;  // or null
  bool relu;
  float limit;  // of the ReLU
  Element* y;
};

/// Input gradient of a normalisation: dx = scale * g + slope * (x - mean) + offset, with g = dy if
/// y is null, NaN or between 0 and limit, otherwise 0. dx may alias dy, y or x.
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
  Element* residual;  // receives g unless null; may alias dy
};

/// Constants of the dropout hash: h(index * kIndexFactor + low key) XOR high key, where `index` is
/// the element's and h is Chris Wellons's lowbias32 (https://nullprogram.com/blog/2018/07/31/).
inline constexpr std::uint32_t kIndexFactor = 0x9e3779b1;
inline constexpr std::uint32_t kHashFactor1 = 0x7feb352d;
inline constexpr std::uint32_t kHashFactor2 = 0x846ca68b;

/// Returns the key of a dropout layer, which is XORed into the low keys of the images.
constexpr std::uint32_t dropout_key(std::int64_t layer) {
  std::uint32_t bits = static_cast<std::uint32_t>(layer) * kIndexFactor + 1;
  bits = (bits ^ (bits >> 16)) * kHashFactor1;
  bits = (bits ^ (bits >> 15)) * kHashFactor2;
  return bits ^ (bits >> 16);
}
/// Returns `Dropout::limit` for probability `p`.
inline std::uint64_t dropout_limit(double p) {
  return static_cast<std::uint64_t>(__builtin_llround(p * 0x1p32));
}

/// Dropout for a block of images. An element is dropped if the hash of its index
/// [channel][row][column] is below the limit.
struct Dropout {
  std::uint32_t low[kImages], high[kImages];  // keys of the images
  std::uint64_t limit;
  float scale;  // for kept elements
};

/// Returns dropout layer `layer`'s parameters for probability `p` and the seeds of `count` samples.
inline Dropout make_dropout(std::int64_t layer, double p, const std::int64_t* seeds,
                            std::int64_t count) {
  Dropout dropout{};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<std::uint64_t>(seeds[i]);
    dropout.low[i] = static_cast<std::uint32_t>(bits) ^ dropout_key(layer);
    dropout.high[i] = static_cast<std::uint32_t>(bits >> 32);
  }
  dropout.limit = dropout_limit(p);
  dropout.scale = static_cast<float>(1 / (1 - p));
  return dropout;
}

struct WindowTap {
  std::int64_t offset;    // of its pixel
  std::int32_t position;  // in the window
  float scale;            // for averages: 1 / number of elements
};

/// Pooling: pixel i has taps `begin[i]` to `begin[i + 1]` (exclusive). In the forward pass, pixels
/// are outputs and taps are the elements of their windows; for gradients, pixels are inputs and
/// taps are the outputs whose windows contain them.
struct PoolingView {
  std::int64_t pixels, pixel_size;
  const std::int64_t* begin;
  const WindowTap* taps;
};

template <class Element>
struct LayerKernels {
  /// Adds per-channel sums of x - shift and of its square to `sums` [2][padded channels].
  void (*add_statistics)(const PixelRange& range, const Element* x, const float* shift,
                         double* sums);
  void (*normalize)(const PixelRange& range, const NormalizeOperands<Element>& operands);
  /// Adds per-channel sums of g (see NormalizeGradientOperands) and, unless x is null, of g * (x -
  /// mean) to `sums`, laid out as in `add_statistics`.
  void (*add_gradient_sums)(const PixelRange& range, const Element* dy, const Element* y,
                            const Element* x, const float* mean, float limit, double* sums);
  /// Writes zeros for padding images.
  void (*normalize_gradient)(const PixelRange& range,
                             const NormalizeGradientOperands<Element>& operands);
  /// y = a + b, then ReLU if `relu`.
  void (*add)(const PixelRange& range, const Element* a, const Element* b, bool relu, Element* y);
  /// dx = dy if y is null, NaN or positive, otherwise 0; zeros for padding images.
  void (*relu_gradient)(const PixelRange& range, const Element* dy, const Element* y, Element* dx);
  void (*activate)(const PixelRange& range, const ActivationSpec& activation, const Element* x,
                   Element* y);
  /// Computes the gradient of x from the gradient of y and `value`, which is y if
  /// `differentiates_output`, otherwise x.
  void (*activation_gradient)(const PixelRange& range, const ActivationSpec& activation,
                              const Element* dy, const Element* value, Element* dx);
  /// Applies dropout, forward or backward. The range must cover all pixels.
  void (*drop)(const PixelRange& range, const Dropout& dropout, const Element* x, Element* y);

  /// Also stores each maximum's position in its window in `argmax`, one byte per element: 255 if
  /// `relu` and no element is positive. As in PyTorch, ties go to the first element.
  void (*max_pool)(const PoolingView& view, const Element* x, bool relu, Element* y,
                   std::uint8_t* argmax);
  void (*max_pool_gradient)(const PoolingView& view, const Element* dy, const std::uint8_t* argmax,
                            Element* dx);
  void (*average_pool)(const PoolingView& view, const Element* x, Element* y);
  void (*average_pool_gradient)(const PoolingView& view, const Element* dy, Element* dx);

  /// Reorders images like PyTorch's flatten; `unflatten` is the inverse.
  void (*flatten)(const ValueShape& shape, const Element* images, Element* vectors);
  void (*unflatten)(const ValueShape& shape, const Element* vectors, Element* images);

  /// These convert one block from and to plain images [image][y][x][channel]; `from_plain` sets
  /// images beyond `count` to zero.
  void (*from_plain)(const ValueShape& shape, const Element* images, std::int64_t count,
                     Element* block);
  void (*to_plain)(const ValueShape& shape, const Element* block, std::int64_t count,
                   Element* images);
};

template <class Element>
struct KernelTable {
  ConvolutionKernels<Element> convolution;
  LayerKernels<Element> layers;
};

/// Returns the kernels for this CPU, or null if it lacks AVX-512 (fp32) or AVX512-BF16 (bf16).
template <class Element>
const KernelTable<Element>* kernel_table();

/// Returns whether there are kernels for this CPU and element type.
template <class Element>
bool is_supported() {
  return kernel_table<Element>() != nullptr;
}

}  // namespace mnist_train::cpu_kernels
