#pragma once

#include <cstdint>

#include "models/convolution_shape.h"

namespace mnist_train::models {

/// Up to 32 images of a batch: `count` images of `size` elements from index `first` on.
struct ImageBlock {
  static constexpr std::int64_t kImages = 32;  // a vector of bf16, two of f32

  std::int64_t first, count, size;
  /// Number of channels of images stored as [channels,pixels]; 1 for [pixels,channels].
  std::int64_t planes;
};

/// CPU kernels for convolutions of blocks of 32 images, bf16 or f32, stored as
/// [height,width,channels,32] (HWCN). Each image has its own lane in all vectors, so no lane is
/// empty even with few channels; in a block of fewer images the other lanes are 0. Sums are f32.
/// Except for packing weights, each call computes a part of the result, so several threads can
/// share it without changing bits.
template <class Element>
struct HwcnConvolution {
  /// Copy the elements `begin` to `end` of all images of a block to HWCN, or back. `images` begins
  /// with image 0.
  void (*to_hwcn)(const ImageBlock& block, const Element* images, std::int64_t begin,
                  std::int64_t end, Element* to);
  void (*from_hwcn)(const ImageBlock& block, const Element* from, std::int64_t begin,
                    std::int64_t end, Element* images);

  /// Number of elements of the packed weights for `forward` and for `backward_data`.
  std::int64_t (*forward_weights)(const ConvolutionShape& shape);
  std::int64_t (*data_weights)(const ConvolutionShape& shape);
  void (*pack_forward)(const ConvolutionShape& shape, const Element* weights, Element* packed);
  void (*pack_data)(const ConvolutionShape& shape, const Element* weights, Element* packed);

  /// Writes row `y` of a block's output [width,out_channels,32] to `out`.
  void (*forward)(const ConvolutionShape& shape, const Element* block, const Element* packed,
                  const Element* bias, std::int64_t y, Element* out);
  /// Writes row `y` of the gradient of a block's images to `into`.
  void (*backward_data)(const ConvolutionShape& shape, const Element* gradient,
                        const Element* packed, std::int64_t y, Element* into);
  /// Writes row `ky` of the gradient of the weights for the output channels `begin` to `end`: the
  /// sum over `count` consecutive blocks.
  void (*backward_weights)(const ConvolutionShape& shape, const Element* blocks,
                           const Element* gradient, std::int64_t count, std::int64_t ky,
                           std::int64_t begin, std::int64_t end, Element* weights);
  /// Writes the gradient of the bias of these output channels.
  void (*backward_bias)(const ConvolutionShape& shape, const Element* gradient, std::int64_t count,
                        std::int64_t begin, std::int64_t end, Element* bias);
};

/// Returns the kernels for AVX-512 with bf16 instructions, or null if the processor lacks these.
template <class Element>
const HwcnConvolution<Element>* avx512_hwcn();

}  // namespace mnist_train::models
