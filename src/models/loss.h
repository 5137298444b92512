#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/operations.h"

namespace mnist_train::models {

using kernels::Targets;

/// Sums over the samples of a batch.
struct BatchLoss {
  at::Tensor loss_sum;  // scalar f32: cross entropy of the logits
  at::Tensor correct;   // scalar i64: samples whose largest logit is the label's
};

/// Returns the loss and number of correct predictions for logits [N,classes], with label smoothing
/// and class weights as in torch.nn.CrossEntropyLoss. A mixed sample counts with its weight for its
/// label and one minus the weight for its other label, in the loss and in `correct` (then fp32).
BatchLoss batch_loss(const at::Tensor& logits, const Targets& targets, double label_smoothing = 0);

/// The starting point of a backward pass.
struct BackwardRoot {
  at::Tensor tensor;
  at::Tensor gradient;  // same shape and type as `tensor`; undefined means 1
};

/// Adds the summed loss, the number of correct predictions and the number of samples to `sums` [3]
/// f32, and returns the root for a backward pass of the summed loss times `scale`. Without class
/// weights, one kernel does this if it can: kernels/gpu/softmax_loss.cu, or its CPU version.
BackwardRoot training_loss(const at::Tensor& logits, const Targets& targets, double label_smoothing,
                           double scale, const at::Tensor& sums);

}  // namespace mnist_train::models
