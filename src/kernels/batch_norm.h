#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace mnist_train::kernels {

/// The tensors of a layer of batch norm on a GPU, [C] f32 each, and how it computes.
struct BatchNormParameters {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor batches;  // scalar i64, how many the running statistics have seen
  double epsilon;
  double momentum;                   // the weight of a batch in the running statistics
  at::Tensor convolution_bias = {};  // [C] like x, which lacks it; undefined for none
};

/// What the backward pass of batch norm is computed from.
struct NormalizedBatch {
  at::Tensor x;
  at::Tensor y;           // defined only with a ReLU and a residual
  at::Tensor statistics;  // [2,C] f32: mean and inverse standard deviation of each channel
  at::Tensor weight;
  at::Tensor bias;
  bool relu = false;
  bool lacks_bias = false;  // that of the convolution which gave x
};

/// The gradients of `relu(batch_norm(x + convolution_bias) + residual)`.
struct BatchNormGradients {
  at::Tensor x;  // undefined where it is not needed
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor residual;
  at::Tensor convolution_bias = {};  // [C] zeros like x; undefined where x lacks no bias
};

/// Returns whether the kernels can normalize x: f32 or bf16, [N,C] or channels_last [N,C,H,W], with
/// at least two numbers a channel. `residual` is undefined or like x.
bool can_normalize(const at::Tensor& x, const at::Tensor& residual);

/// Returns `relu(batch_norm(x + convolution_bias) + residual)`, with ReLU, residual and bias only
/// where they are wanted, in training: writes the statistics of x to `statistics` [2,C] f32 and
/// updates the running ones. The bias moves nothing but the running mean. See gpu/batch_norm.cu.
at::Tensor batch_norm(const BatchNormParameters& layer, const at::Tensor& x,
                      const at::Tensor& residual, bool relu, const at::Tensor& statistics);

/// Returns the gradients for `gradient`, which is that of y.
BatchNormGradients batch_norm_gradients(const NormalizedBatch& batch, const at::Tensor& gradient,
                                        bool needs_x);

/// Computes a small known case by the kernels on the device and by LibTorch on the host. Returns
/// what differs; nothing where they agree.
std::string check_batch_norm(at::Device device);

}  // namespace mnist_train::kernels
