#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace mnist_train::kernels {

/// What the loss of a batch is computed from, all on one GPU.
struct SoftmaxLossInput {
  at::Tensor logits;        // [N,classes] f32 or bf16, contiguous
  at::Tensor labels;        // [N] i64
  at::Tensor other_labels;  // [N] i64; undefined where samples are not mixed
  at::Tensor weights;       // [N] f32 of `labels`; undefined where samples are not mixed
  double smoothing = 0;     // of the labels
};

/// Returns whether the kernel computes the loss of such logits.
bool can_softmax_loss(const at::Tensor& logits);

/// Adds the sums of the samples' losses, of the correct predictions and of the samples to `sums`
/// [3] f32, and writes the gradient of the losses' sum, multiplied by `scale`, to `gradient`, which
/// is like the logits, or undefined where nobody needs it. See gpu/softmax_loss.cu.
void softmax_loss(const SoftmaxLossInput& input, double scale, const at::Tensor& gradient,
                  const at::Tensor& sums);

/// Computes a small known case by the kernel on the device and by LibTorch on the host. Returns
/// what differs; nothing where they agree.
std::string check_softmax_loss(at::Device device);

}  // namespace mnist_train::kernels
