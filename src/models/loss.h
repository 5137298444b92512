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

}  // namespace mnist_train::models
