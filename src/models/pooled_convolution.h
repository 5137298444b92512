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

/// The sizes of one image through the operations.
struct PooledShapes {
  ConvolutionShape convolution;
  PooledImage pool;  // of the convolution's output

  /// For images of this size and weights [out_channels,in_channels,kernel,kernel].
  PooledShapes(std::int64_t height, std::int64_t width, const at::Tensor& weights)
      : convolution{height, width, weights.size(1), weights.size(2), weights.size(0)},
        pool{convolution.out_height(), convolution.out_width(), convolution.out_channels} {}
};

/// What the forward pass gives, and what it keeps for the backward pass.
struct PooledConvolution {
  at::Tensor out;
  at::Tensor images;  // as the backward pass wants them
  at::Tensor choice;  // which inputs of the pooling are the largest
};

/// What the backward pass takes.
struct PooledConvolutionBackward {
  at::Tensor images, choice;  // of the forward pass
  at::Tensor weights;         // [out_channels,in_channels,kernel,kernel], channels last
  at::Tensor gradient;        // of `out`, and laid out like it
  bool planar;                // whether that is contiguous, not channels last
  bool wants_images;          // whether the gradient of the images is wanted
  WantedGradients wanted;     // of weights and bias
};

struct PooledConvolutionGradients {
  at::Tensor images;  // undefined where it is not wanted
  at::Tensor weights, bias;
};

/// Returns tensors for the gradients of weights and bias: those that are wanted, or new ones.
inline PooledConvolutionGradients make_gradients(const PooledConvolutionBackward& pass) {
  const at::Tensor& like = pass.weights;
  return {{},
          gradient_tensor(pass.wanted.weight, like.sizes(),
                          like.options().memory_format(at::MemoryFormat::ChannelsLast)),
          gradient_tensor(pass.wanted.bias, {like.size(0)}, like.options())};
}

/// A way to take images on a CPU through a convolution, ReLU and 2x2 max-pooling, and back.
/// Kernels are square, with stride 1 and without padding; images [N,C,H,W] and weights are channels
/// last, and so is what comes out, unless it is `planar`.
struct PooledConvolutionPasses {
  PooledConvolution (*forward)(const at::Tensor& images, const at::Tensor& weights,
                               const at::Tensor& bias, bool planar);
  PooledConvolutionGradients (*backward)(const PooledConvolutionBackward& pass);
};

/// Returns the way that takes 32 images of bf16 or f32 at a time, each in a lane of its own
/// (`HwcnConvolution`), or null where the kernels for it are null.
const PooledConvolutionPasses* images_in_lanes(at::ScalarType type);
/// Returns the way that takes one image of bf16 after the other, whose products use AMX where there
/// is one, and whose backward pass, too, stays in the processor's cache. It is null for other
/// types, and where the processor lacks the instructions.
const PooledConvolutionPasses* image_by_image(at::ScalarType type);

}  // namespace mnist_train::models
