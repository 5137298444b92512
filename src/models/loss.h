#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::models {

/// Sums over the samples of a batch.
struct BatchLoss {
  at::Tensor loss_sum;  // scalar f32: negative log-likelihood of the log-softmax of the logits
  at::Tensor correct;   // scalar i64: samples whose greatest logit is the label's
};

/// The same of samples that were mixed: each counts `weights` [N] f32 for its label and the rest
/// for its other one, in the loss and where the guess is right. `correct` is f32 then.
BatchLoss mixed_batch_loss(const at::Tensor& logits, const at::Tensor& labels,
                           const at::Tensor& other_labels, const at::Tensor& weights,
                           double label_smoothing = 0);

/// Logits [N,classes] and labels [N] i64; `label_smoothing` as in torch.nn.CrossEntropyLoss.
BatchLoss batch_loss(const at::Tensor& logits, const at::Tensor& labels,
                     double label_smoothing = 0);

}  // namespace mnist_train::models
