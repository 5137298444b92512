#pragma once

#include <cstdint>

namespace mnist_train::models {

/// A convolution by a square kernel with stride 1 and without padding. Images, gradients and
/// weights are bf16, given by their bits, channels last: [height,width,channels] and
/// [out_channels,kernel,kernel,in_channels].
struct ConvolutionShape {
  std::int64_t height, width, in_channels, kernel, out_channels;

  std::int64_t out_height() const { return height - kernel + 1; }
  std::int64_t out_width() const { return width - kernel + 1; }
  /// Elements of the image that lie side by side in memory and under one row of the kernel.
  std::int64_t run() const { return kernel * in_channels; }
};

/// Kernels for the CPU, for one image and one thread at a time. Sums are fp32.
struct Bf16Convolution {
  using Bits = std::int16_t;
  /// Elements of the buffers that the functions need.
  struct Sizes {
    std::int64_t forward_weights;  // Bits
    std::int64_t data_weights;     // Bits
    std::int64_t bias;             // float, those behind out_channels 0
    std::int64_t image_sums;       // float
    std::int64_t pairs;            // Bits
    std::int64_t weight_sums;      // float
  };

  Sizes (*sizes)(const ConvolutionShape& shape);
  /// The weights as `forward` and `backward_data` want them.
  void (*pack_forward)(const ConvolutionShape& shape, const Bits* weights, Bits* packed);
  void (*pack_data)(const ConvolutionShape& shape, const Bits* weights, Bits* packed);
  void (*forward)(const ConvolutionShape& shape, const Bits* in, const Bits* packed,
                  const float* bias, Bits* out);
  /// Writes the gradient of the image.
  void (*backward_data)(const ConvolutionShape& shape, const Bits* gradient, const Bits* packed,
                        float* image_sums, Bits* into);
  /// Adds to the gradients of weights, in an order of its own, and bias.
  void (*backward_weights)(const ConvolutionShape& shape, const Bits* in, const Bits* gradient,
                           Bits* pairs, float* weight_sums, float* bias);
  /// Writes sums of `backward_weights` in the weights' order.
  void (*unpack_weights)(const ConvolutionShape& shape, const float* weight_sums, Bits* weights);
};

/// For processors with AVX-512 and its bf16 instructions; null on others, and where there are AMX
/// tiles, which LibTorch uses and which are faster.
const Bf16Convolution* avx512_bf16_convolution();

}  // namespace mnist_train::models
