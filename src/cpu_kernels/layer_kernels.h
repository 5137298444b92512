#pragma once

#include <cstdint>

#include "cpu_kernels/dropout.h"
#include "cpu_kernels/layout.h"

/// Kernels of layers other than convolutions. Each call computes part of one block of images, so
/// that threads can share blocks, and a band of rows that was just computed is still in the cache.
namespace mnist_train::cpu_kernels {

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

}  // namespace mnist_train::cpu_kernels
