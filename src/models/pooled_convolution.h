#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "models/convolution_shape.h"
#include "models/gradient_places.h"
#include "models/relu_max_pool_rows.h"

namespace mnist_train::models {

inline constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

/// The sizes of one image through the operations.
struct PooledShapes {
  ConvolutionShape convolution;
  PooledImage pool;  // of the convolution's output

  /// For images of this size and weights [out_channels,in_channels,kernel,kernel].
  PooledShapes(std::int64_t height, std::int64_t width, const at::Tensor& weights)
      : convolution{height, width, weights.size(1), weights.size(2), weights.size(0)},
        pool{convolution.out_height(), convolution.out_width(), convolution.out_channels} {}
};

/// Result of the forward pass, and the tensors that it keeps for the backward pass.
struct PooledConvolution {
  at::Tensor out;
  at::Tensor images;  // in the layout of the backward pass
  at::Tensor choice;  // positions of the maxima of the pooling
};

/// Inputs of the backward pass.
struct PooledConvolutionBackward {
  at::Tensor images, choice;  // of the forward pass
  at::Tensor weights;         // [out_channels,in_channels,kernel,kernel], channels last
  at::Tensor gradient;        // of `out`, with its layout
  bool planar;                // whether that is contiguous, not channels last
  bool wants_images;          // whether to compute the gradient of the images
  bool wants_parameters;      // whether to compute those of weights and bias
  WantedGradients wanted;     // of weights and bias
};

struct PooledConvolutionGradients {
  // Undefined if not wanted.
  at::Tensor images;
  at::Tensor weights, bias;
};

/// Returns tensors for the gradients of weights and bias, if wanted: the destination buffers, or
/// new ones.
inline PooledConvolutionGradients make_gradients(const PooledConvolutionBackward& pass) {
  const at::Tensor& like = pass.weights;
  if (!pass.wants_parameters) return {};
  return {{},
          gradient_tensor(pass.wanted.weight, like.sizes(),
                          like.options().memory_format(kChannelsLast)),
          gradient_tensor(pass.wanted.bias, {like.size(0)}, like.options())};
}

/// An implementation of convolution, ReLU and 2x2 max-pooling on a CPU. Kernels are square, with
/// stride 1 and no padding; images [N,C,H,W] and weights are channels last, and so is the output,
/// unless it is `planar`.
struct PooledConvolutionPasses {
  PooledConvolution (*forward)(const at::Tensor& images, const at::Tensor& weights,
                               const at::Tensor& bias, bool planar);
  PooledConvolutionGradients (*backward)(const PooledConvolutionBackward& pass);
};

/// Returns the implementation that takes 32 images of bf16 or f32 at a time, one per lane
/// (`HwcnConvolution`), or null if the processor lacks its kernels.
const PooledConvolutionPasses* images_in_lanes(at::ScalarType type);
/// Returns the implementation that takes bf16 images one by one, uses AMX if available, and keeps
/// both passes in the processor's cache. Null for other types, or if the processor lacks the
/// instructions.
const PooledConvolutionPasses* image_by_image(at::ScalarType type);

}  // namespace mnist_train::models
