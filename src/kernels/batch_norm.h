#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::kernels {

/// Parameters of a batch norm layer on a GPU; tensors are [C] f32.
struct BatchNormParameters {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor batches;  // scalar i64: number of batches in the running statistics
  double epsilon;
  double momentum;                   // weight of a batch in the running statistics
  at::Tensor convolution_bias = {};  // [C] of the type of x, left out of x; undefined: none
};

/// Inputs of the backward pass of batch norm.
struct NormalizedBatch {
  at::Tensor x;
  at::Tensor y;           // defined only with a ReLU and a residual
  at::Tensor statistics;  // [2,C] f32: mean and inverse standard deviation of each channel
  at::Tensor weight;
  at::Tensor bias;
  bool relu = false;
  bool lacks_bias = false;  // whether x lacks the bias of its convolution
};

/// The gradients of `relu(batch_norm(x + convolution_bias) + residual)`.
struct BatchNormGradients {
  at::Tensor x;  // undefined if not needed
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor residual;
  at::Tensor convolution_bias = {};  // [C] zeros of the type of x; undefined if x lacks no bias
};

/// Returns whether the kernels can normalize x: f32 or bf16, [N,C] or channels_last [N,C,H,W], with
/// at least two values per channel. `residual` must be undefined or like x.
bool can_normalize(const at::Tensor& x, const at::Tensor& residual);

/// Returns `relu(batch_norm(x + convolution_bias) + residual)` in training mode; ReLU, residual and
/// bias are optional. Writes the statistics of x to `statistics` [2,C] f32 and updates the running
/// ones. The bias affects only the running mean. See gpu/batch_norm.cu.
at::Tensor batch_norm(const BatchNormParameters& layer, const at::Tensor& x,
                      const at::Tensor& residual, bool relu, const at::Tensor& statistics);

/// Returns the gradients for the gradient of y.
BatchNormGradients batch_norm_gradients(const NormalizedBatch& batch, const at::Tensor& gradient,
                                        bool needs_x);

}  // namespace mnist_train::kernels
