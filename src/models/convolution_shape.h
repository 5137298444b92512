#pragma once

#include <cstdint>

namespace mnist_train::models {

using Bf16Bits = std::int16_t;  // the bits of a bf16

/// A convolution with a square kernel, stride 1 and no padding. Weights are stored as
/// [out_channels,kernel,kernel,in_channels].
struct ConvolutionShape {
  std::int64_t height, width, in_channels, kernel, out_channels;

  std::int64_t out_height() const { return height - kernel + 1; }
  std::int64_t out_width() const { return width - kernel + 1; }
  /// Number of elements of an image.
  std::int64_t image_size() const { return height * width * in_channels; }
  /// Number of adjacent elements of the image under one row of the kernel.
  std::int64_t run() const { return kernel * in_channels; }
};

}  // namespace mnist_train::models
