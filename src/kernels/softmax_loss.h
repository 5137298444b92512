#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::kernels {

/// Inputs of the loss of a batch, all on one GPU.
struct SoftmaxLossInput {
  at::Tensor logits;        // [N,classes] f32 or bf16, contiguous
  at::Tensor labels;        // [N] i64
  at::Tensor other_labels;  // [N] i64; undefined unless samples are mixed
  at::Tensor weights;       // [N] f32 of `labels`; undefined unless samples are mixed
  double smoothing = 0;     // of the labels
};

/// Returns whether the kernel computes the loss of such logits.
bool can_softmax_loss(const at::Tensor& logits);

/// Adds the summed loss, the number of correct predictions and the number of samples to `sums` [3]
/// f32, and writes the gradient of the summed loss times `scale` to `gradient`, which is like the
/// logits, or undefined if nobody needs it. See gpu/softmax_loss.cu.
void softmax_loss(const SoftmaxLossInput& input, double scale, const at::Tensor& gradient,
                  const at::Tensor& sums);

}  // namespace mnist_train::kernels
