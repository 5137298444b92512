#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "accelerator/device.h"

namespace mnist_train::kernels {

/// A computation that a custom kernel does instead of several operations of LibTorch. Its
/// file launches and checks it; selection.cpp has the table of all.
enum class Operation {
  kSoftmaxLoss,
  kOptimizerUpdate,
  kReluMaxPool,
  kGatherBatch,
  kBatchNorm,
  kLinearActivation
};

inline constexpr std::size_t kOperations = 6;

/// The implementation of an operation on the GPU of this process.
struct Selected {
  const char* name;         // of the operation, such as "softmax_loss"
  bool is_own = false;      // the custom kernel, not LibTorch's operations
  std::string reason = {};  // why LibTorch computes it; empty for the kernel
};

/// Compiles the kernels for a GPU and uses those that agree with LibTorch's operations on small
/// known cases. LibTorch's operations stay selected if NVRTC is missing or a kernel differs. Throws
/// PeerError if the GPU does not answer, and Error(kRunFailed) if a check broke it. Must be called
/// before the first step; takes some seconds of a core if the user's cache lacks the kernels.
void prepare(at::Device device);

/// The same with compiled kernels. Null: uses none, for this reason.
void use(at::Device device, std::unique_ptr<const accelerator::KernelModule> compiled,
         const std::string& reason_for_none = {});

/// Returns the implementation of each operation, in the order of `Operation`.
const std::array<Selected, kOperations>& selected();

/// Selects LibTorch's operations from now on, and keeps the reason.
void reject(Operation operation, const std::string& reason);

/// Returns whether the kernel computes the operation for tensors on the device.
bool is_used(Operation operation, at::Device device);
/// Returns whether any kernel does.
bool is_any_used(at::Device device);

/// The targets of a batch.
struct Targets {
  at::Tensor labels;           // [N] i64
  at::Tensor other_labels{};   // [N] i64; undefined, like `weights`, unless samples are mixed
  at::Tensor weights{};        // [N] f32, of `labels`
  at::Tensor class_weights{};  // [classes] f32; undefined: all 1
};

/// Returns whether the kernel computes the loss of such logits.
bool can_softmax_loss(const at::Tensor& logits);

/// Adds the summed loss of logits [N,classes] f32 or bf16, the number of correct predictions and
/// the number of samples to `sums` [3] f32, and writes the gradient of the summed loss times
/// `scale` to `gradient`, which is like the logits, or undefined if nobody needs it. Ignores class
/// weights; all tensors are contiguous and on one GPU. See gpu/softmax_loss.cu.
void softmax_loss(const at::Tensor& logits, const Targets& targets, double smoothing, double scale,
                  const at::Tensor& gradient, const at::Tensor& sums);

/// The weights that a step updates, all on one device; tensors are contiguous, and may be views
/// without alignment.
struct WeightUpdate {
  at::Tensor values;          // [n] f32
  at::Tensor gradients;       // [n] f32
  at::Tensor learning_rate;   // scalar f32, or f64 on a CPU
  at::Tensor gradient_scale;  // scalar f32, see `clipping_scale`; undefined without clipping
  at::Tensor bf16_copy;       // [h] bf16 of the first h <= n values; may be undefined
  at::Tensor average;         // [n] f32, moving average of the values; may be undefined
  at::Tensor average_weight;  // scalar of `learning_rate`'s type: of the new values
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
  at::Tensor square_average;  // [n] f32
  at::Tensor steps;           // scalar f32: number of earlier steps, which the update increments
};

using UpdateRule = std::variant<SgdRule, AdamRule>;

/// Takes an optimizer step in one launch: reads gradients, writes weights, optimizer state, bf16
/// copy and moving average, and scales the gradients in place. See gpu/optimizer_update.cu.
void update_weights(const WeightUpdate& update, const UpdateRule& rule);

/// Takes the same step by LibTorch's fused optimizers, of weights and optimizer state alone.
/// Ignores the gradients' scale.
void update_by_libtorch(const WeightUpdate& update, const UpdateRule& rule);

/// Returns the factor that limits the norm of gradients [n] f32 to `max_norm`: a scalar f32 on
/// their device, or NaN, which updates nothing, if the norm is not finite. See
/// gpu/optimizer_update.cu.
at::Tensor clipping_scale(const at::Tensor& gradients, double max_norm);

/// Returns whether the kernels can compute `max_pool2d(relu(x + bias), 2)` of x [N,C,H,W] and bias
/// [C], which may be undefined: f32 or bf16, and images of at least 2x2.
bool can_relu_max_pool(const at::Tensor& x, const at::Tensor& bias);

/// The output of `relu_max_pool` [N,C,H/2,W/2].
struct PooledRelu {
  at::Tensor out;
  at::Tensor choice;  // u8, channels last: positions of the maxima, see gpu/relu_max_pool.cu
};

/// Returns `max_pool2d(relu(x + bias), 2)` of images [N,C,H,W], channels last or, if `planar`,
/// contiguous; `bias` [C] may be undefined.
PooledRelu relu_max_pool(const at::Tensor& images, const at::Tensor& bias, bool planar);

struct ReluMaxPoolGradients {
  at::Tensor x;     // [N,C,height,width], channels last
  at::Tensor bias;  // [C]; undefined unless needed
};

/// Returns the gradients of `relu_max_pool` for that of its output.
ReluMaxPoolGradients relu_max_pool_gradients(const at::Tensor& of_output, const at::Tensor& choice,
                                             std::int64_t height, std::int64_t width, bool planar,
                                             bool needs_bias);

/// The samples of a batch. All tensors are contiguous and on one GPU.
struct BatchSamples {
  std::int64_t count;  // of the batch
  at::Tensor rows;     // [samples, ...]: images of any type
  at::Tensor labels;   // [samples] i64
  at::Tensor order{};  // [n] i64 of samples; undefined: the stored order
  at::Tensor seeds{};  // [n] i64 in that order; undefined: not needed
  // [count or more] i64 in that order; undefined: consecutive ones from `first` on
  at::Tensor positions{};
  std::int64_t first = 0;
  std::int64_t advance = 0;  // added to all of `positions` after reading them
};

/// A gathered batch.
struct MadeBatch {
  at::Tensor images;
  at::Tensor labels;          // [count] i64
  at::Tensor other_labels{};  // if samples are mixed, [count] i64: labels of the partners
  at::Tensor weights{};       // if samples are mixed, [count] f32: each one's against its partner
  at::Tensor seeds{};         // [count] i64, if needed
};

/// Returns the samples with their images as stored, [count, ...]. See gpu/gather_batch.cu.
MadeBatch gather_rows(const BatchSamples& samples);

/// Kinds of steps of a PixelMap, with the values of gpu/gather_batch.cu.
enum class PixelStep : int { kCrop, kFlip, kCutout };

/// Maps pixels of augmented and normalised images to stored pixels.
struct PixelMap {
  at::Tensor steps{};              // [steps,5] i32, see gpu/gather_batch.cu; undefined: none
  std::int64_t stored_height = 0;  // of the bytes
  std::int64_t stored_width = 0;
  std::int64_t height = 0;  // of the output
  std::int64_t width = 0;
  std::int64_t mixed_before = -1;      // the step before which samples are mixed; -1: never
  bool mixes_bytes = false;            // instead of normalised values
  std::int64_t weight_column = 0;      // column of `drawn` with the weights of mixup
  std::int64_t normalized_before = 0;  // the step before which bytes are normalised
  at::Tensor tables{};                 // [1 or channels,256] f32: normalised value of each byte
  at::Tensor drawn{};                  // [n, columns] f32 in the samples' order; undefined: none
};

/// Returns the samples with their images augmented, normalised and mixed, each with the next one;
/// `samples.positions` then has one more. Rows are bytes [channels, stored_height, stored_width];
/// images are [count, channels, height, width] of `type`, f32 or bf16, with channels_last strides.
MadeBatch gather_pixels(const BatchSamples& samples, const PixelMap& map, at::ScalarType type);

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

/// Activations after a linear layer whose derivative is a function of their output.
enum class LinearFunction { kRelu, kTanh };

/// Returns whether the kernel can compute the gradients of a linear layer with this input [N,I],
/// weight [O,I] and bias [O] and an activation: all f32 or all bf16, and the bias defined.
bool can_linear_activation(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// The gradients of a linear layer with an activation.
struct LinearActivationGradients {
  at::Tensor linear;  // [N,O], of the output of the linear layer
  at::Tensor bias;    // [O]
};

/// Returns the gradients of the linear layer for the output of the activation, y [N,O], and the
/// gradient of y. All are contiguous.
LinearActivationGradients linear_activation_gradients(LinearFunction function, const at::Tensor& y,
                                                      const at::Tensor& gradient);

}  // namespace mnist_train::kernels
