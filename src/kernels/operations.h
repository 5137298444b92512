#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <variant>

#include "accelerator/device.h"

namespace mnist_train::kernels {

/// Compiles the kernels and enables them on this GPU, which must be the calling thread's current
/// device. Call before the first step; takes several seconds of CPU time unless the kernels are in
/// the user's cache. Throws Error(kRunFailed) if they cannot be compiled.
void prepare(at::Device device);

/// Enables the `compiled` kernels on this device, or disables all kernels if `compiled` is null.
void use(at::Device device, std::unique_ptr<accelerator::KernelModule> compiled);

/// Returns whether the kernels replace LibTorch's operations for tensors on this device.
bool are_used(at::Device device);

/// Targets of a batch.
struct Targets {
  at::Tensor labels;           // [N] i64
  at::Tensor other_labels{};   // [N] i64; like `weights`, undefined unless samples are mixed
  at::Tensor weights{};        // [N] f32 weights of `labels`
  at::Tensor class_weights{};  // [classes] f32; if undefined, all are 1
};

/// Returns whether the kernel supports these logits.
bool supports_softmax_loss(const at::Tensor& logits);

/// Adds the summed loss of logits [N,classes] f32 or bf16, the number of correct predictions and
/// the number of samples to `sums` [3] f32. Writes the gradient of the summed loss times `scale` to
/// `gradient`, which has the shape and type of the logits, or is undefined if not needed. Ignores
/// class weights. All tensors are contiguous and on one GPU. See gpu/softmax_loss.cu.
void softmax_loss(const at::Tensor& logits, const Targets& targets, double smoothing, double scale,
                  const at::Tensor& gradient, const at::Tensor& sums);

/// Tensors of an optimizer step, contiguous and on one device. On GPUs, n and h are multiples of 4,
/// and tensors are aligned to 4 elements.
struct WeightUpdate {
  at::Tensor values;          // [n] f32
  at::Tensor gradients;       // [n] f32
  at::Tensor learning_rate;   // scalar f32, or f64 on a CPU
  at::Tensor bf16_copy;       // [h] bf16 copy of the first h <= n values; may be undefined
  at::Tensor average;         // [n] f32, moving average of the values; may be undefined
  at::Tensor average_weight;  // scalar, type of `learning_rate`: weight of the new values
  at::Tensor check{};         // scalar f32, set to NaN if values are not finite; may be undefined
};

/// torch.optim.SGD with momentum, Nesterov and weight decay (dampening 0).
struct SgdRule {
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  at::Tensor momentum_buffer;  // [n] f32; undefined without momentum
};

/// torch.optim.Adam, or AdamW if the weight decay is `decoupled` from the gradients.
struct AdamRule {
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  bool decoupled = false;
  at::Tensor average;         // [n] f32, of the gradients
  at::Tensor square_average;  // [n] f32, of the squared gradients
  at::Tensor steps;           // scalar f32: number of previous steps, incremented by the update
};

using UpdateRule = std::variant<SgdRule, AdamRule>;

/// Performs an optimizer step in one launch: reads the gradients, and writes weights, optimizer
/// state, bf16 copy and moving average. See gpu/optimizer_update.cu.
void update_weights(const WeightUpdate& update, const UpdateRule& rule);

/// Performs the same step with LibTorch's fused optimizers, for weights and optimizer state only.
void update_with_libtorch(const WeightUpdate& update, const UpdateRule& rule);

/// Returns whether the kernels can compute `max_pool2d(relu(x + bias), 2)` for x [N,C,H,W], fp32 or
/// bf16, with H, W >= 2 and fewer than 2^31 values. `bias` [C] has the same type or is undefined.
bool supports_relu_max_pool(const at::Tensor& x, const at::Tensor& bias);

/// Returns `max_pool2d(relu(images + bias), 2)` for images [N,C,H,W] in any memory format; `bias`
/// [C] may be undefined. The output is channels_last or, if `planar`, contiguous.
at::Tensor relu_max_pool(const at::Tensor& images, const at::Tensor& bias, bool planar);

/// The samples to gather into a batch. All tensors are contiguous and on one GPU.
struct BatchSamples {
  std::int64_t count;      // samples in the batch
  at::Tensor rows;         // [samples, ...]: images of any type
  at::Tensor labels;       // [samples] i64
  at::Tensor order;        // [n] i64 sample indices
  at::Tensor seeds{};      // [n] i64, one per entry of `order`; undefined if not needed
  at::Tensor positions{};  // [count] i64, in `order`; if undefined, consecutive from `first`
  std::int64_t first = 0;
  std::int64_t advance = 0;  // added to all `positions` after they are read
};

/// A gathered batch.
struct GatheredRows {
  at::Tensor images;   // [count, ...] as stored
  at::Tensor labels;   // [count] i64
  at::Tensor seeds{};  // [count] i64, if needed
};

/// Gathers samples. See gpu/gather_batch.cu.
GatheredRows gather_rows(const BatchSamples& samples);

/// Parameters of a batch norm layer on a GPU. Tensors are [C] f32 unless noted.
struct BatchNormParameters {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor batches;  // scalar i64: number of batches in the running statistics
  double epsilon;
  double momentum;                   // weight of a batch in the running statistics
  at::Tensor convolution_bias = {};  // [C] of x's type, omitted from x; undefined if none
};

/// Returns whether the kernels can normalise x: fp32 or bf16, [N,C] or channels_last [N,C,H,W],
/// with at least two values per channel and C at most 65,536. `residual` must be undefined or have
/// x's shape, type and format.
bool supports_batch_norm(const at::Tensor& x, const at::Tensor& residual);

/// Returns `relu(batch_norm(x + convolution_bias) + residual)` in training mode; ReLU, residual and
/// bias are optional. Updates the running statistics; the bias affects only the running mean, and
/// its gradient is zero. See gpu/batch_norm.cu.
at::Tensor batch_norm(const BatchNormParameters& layer, const at::Tensor& x,
                      const at::Tensor& residual, bool relu);

/// Activations that may follow a linear layer. Their derivatives are computed from their outputs.
enum class LinearFunction { kRelu, kTanh };

/// Returns whether the kernel can compute the gradients of a linear layer with this input [N,I],
/// weight [O,I] and bias [O], followed by an activation. All must have one type, fp32 or bf16;
/// the bias must be defined, and O at most 65,536.
bool supports_linear_activation(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& bias);

/// Returns the activation of `linear(x, weight, bias)`. In the backward pass, a single launch
/// computes the gradients of the activation's input and of the bias.
at::Tensor linear_activation(LinearFunction function, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& bias);

/// A convolution in which each output channel reads one input channel: depthwise, or with
/// single-channel images. Kernel, stride and zero padding are the same in both directions.
struct ChannelConvolution {
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
};

/// Returns whether the kernels can convolve x [N,I,H,W] with this weight [C,1,kernel,kernel], where
/// I is C, or 1 if x needs no gradient. Both must be fp32 or both bf16, the weight contiguous, the
/// kernel 3x3 or 5x5 and larger than the padding, C <= 13,056, and x smaller than 2^31 values.
bool supports_convolution(const ChannelConvolution& layer, const at::Tensor& x,
                          const at::Tensor& weight);

/// Returns the output [N,C,H',W'] for channels_last x, in the same format. See
/// gpu/channel_convolution.cu.
at::Tensor convolve(const ChannelConvolution& layer, const at::Tensor& x, const at::Tensor& weight);

}  // namespace mnist_train::kernels
