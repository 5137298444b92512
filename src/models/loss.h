#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::models {

/// Sums over the samples of a batch.
struct BatchLoss {
  at::Tensor loss_sum;  // scalar f32: negative log-likelihood of the log-softmax of the logits
  at::Tensor correct;   // scalar i64: samples whose greatest logit is the label's
};

/// Returns loss and correct predictions of logits [N,classes] for labels [N] i64, with label
/// smoothing as in torch.nn.CrossEntropyLoss.
BatchLoss batch_loss(const at::Tensor& logits, const at::Tensor& labels,
                     double label_smoothing = 0);

/// Does the same for mixed samples: in the loss as in `correct`, which then is f32, sample i counts
/// with `weights`[i] (f32) for its label and with the rest for its other label.
BatchLoss mixed_batch_loss(const at::Tensor& logits, const at::Tensor& labels,
                           const at::Tensor& other_labels, const at::Tensor& weights,
                           double label_smoothing = 0);

/// What the samples of a batch are to be recognised as.
struct Targets {
  at::Tensor labels;        // [N] i64
  at::Tensor other_labels;  // [N] i64; this one and the next are undefined where nothing is mixed
  at::Tensor weights;       // [N] f32, of `labels`
};

/// Where a backward pass begins.
struct BackwardRoot {
  at::Tensor tensor;
  at::Tensor gradient;  // like the tensor; undefined for 1
};

/// Adds the sums of the samples' losses, of the correct predictions and of the samples to `sums`
/// [3] f32, and returns where to begin for the gradients of the losses' sum times `scale`. One
/// kernel does all of it: kernels/gpu/softmax_loss.cu, or on a CPU `host_softmax_loss`.
BackwardRoot training_loss(const at::Tensor& logits, const Targets& targets, double label_smoothing,
                           double scale, const at::Tensor& sums);

}  // namespace mnist_train::models
