#pragma once

#include <cstdint>

#include "models/convolution_shape.h"

namespace mnist_train::models {

/// CPU kernels for one image on one thread. Images and gradients are bf16, stored as
/// [height,width,channels]; sums are fp32.
struct Bf16Convolution {
  /// Sizes of the workspaces, in elements.
  struct BufferSizes {
    std::int64_t forward_weights;  // bf16
    std::int64_t data_weights;     // bf16
    std::int64_t bias;             // fp32, packed or sums
    std::int64_t image_sums;       // fp32
    std::int64_t pairs;            // bf16
    std::int64_t weight_sums;      // fp32
  };

  BufferSizes (*sizes)(const ConvolutionShape& shape);
  /// Pack the weights for `forward`, with the bias, and for `backward_data`.
  void (*pack_forward)(const ConvolutionShape& shape, const Bf16Bits* weights, const Bf16Bits* bias,
                       Bf16Bits* packed, float* packed_bias);
  void (*pack_data)(const ConvolutionShape& shape, const Bf16Bits* weights, Bf16Bits* packed);
  void (*forward)(const ConvolutionShape& shape, const Bf16Bits* in, const Bf16Bits* packed,
                  const float* packed_bias, Bf16Bits* out);
  /// Writes the gradient of the image to `into`.
  void (*backward_data)(const ConvolutionShape& shape, const Bf16Bits* gradient,
                        const Bf16Bits* packed, float* image_sums, Bf16Bits* into);
  /// Adds the gradients of weights and bias to the sums, which have the layout of the kernels.
  void (*backward_weights)(const ConvolutionShape& shape, const Bf16Bits* in,
                           const Bf16Bits* gradient, Bf16Bits* pairs, float* weight_sums,
                           float* bias_sums);
  /// Rounds the sums of `backward_weights` and writes them in the layout of weights and bias.
  void (*unpack_weights)(const ConvolutionShape& shape, const float* weight_sums,
                         const float* bias_sums, Bf16Bits* weights, Bf16Bits* bias);
};

/// Returns the kernels for AVX-512 with bf16 instructions, or null if the processor lacks these.
/// They use AMX if available.
const Bf16Convolution* avx512_bf16_convolution();
/// Returns whether this process may use AMX.
bool multiplies_by_amx();

}  // namespace mnist_train::models
