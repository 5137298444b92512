#include "models/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>

#include <utility>

#include "kernels/selection.h"
#include "kernels/softmax_loss.h"
#include "models/host_softmax_loss.h"

namespace mnist_train::models {

namespace {

constexpr std::int64_t kIgnoreNothing = -100;

}  // namespace

BatchLoss mixed_batch_loss(const at::Tensor& logits, const at::Tensor& labels,
                           const at::Tensor& other_labels, const at::Tensor& weights,
                           double label_smoothing) {
  const at::Tensor scores = logits.to(at::kFloat);
  const at::Tensor predicted = at::argmax(logits.detach(), 1);
  const at::Tensor other_weights = 1 - weights;
  const auto losses = [&](const at::Tensor& targets) {
    return at::cross_entropy_loss(scores, targets, {}, at::Reduction::None, kIgnoreNothing,
                                  label_smoothing);
  };
  // Cross entropy is linear in the target, smoothed or not, so this is the loss of the mixed one.
  return {(losses(labels) * weights + losses(other_labels) * other_weights).sum(),
          (predicted.eq(labels) * weights + predicted.eq(other_labels) * other_weights).sum()};
}

BatchLoss batch_loss(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing) {
  // A sum of losses in bf16 would keep two digits.
  return {at::cross_entropy_loss(logits.to(at::kFloat), labels, {}, at::Reduction::Sum,
                                 kIgnoreNothing, label_smoothing),
          at::argmax(logits.detach(), 1).eq(labels).sum()};
}

BackwardRoot training_loss(const at::Tensor& logits, const Targets& targets, double label_smoothing,
                           double scale, const at::Tensor& sums) {
  const bool by_kernel = kernels::is_used(kernels::Operation::kSoftmaxLoss, logits.device()) &&
                         kernels::can_softmax_loss(logits);
  if (by_kernel || can_host_softmax_loss(logits)) {
    // Weights may be a column of all that was drawn for the samples.
    const at::Tensor weights =
        targets.weights.defined() ? targets.weights.contiguous() : at::Tensor();
    const kernels::SoftmaxLossInput input{logits.detach(), targets.labels, targets.other_labels,
                                          weights, label_smoothing};
    at::Tensor gradient = at::empty_like(input.logits);
    (by_kernel ? kernels::softmax_loss : host_softmax_loss)(input, scale, gradient, sums);
    return {logits, std::move(gradient)};
  }
  const BatchLoss loss = targets.weights.defined()
                             ? mixed_batch_loss(logits, targets.labels, targets.other_labels,
                                                targets.weights, label_smoothing)
                             : batch_loss(logits, targets.labels, label_smoothing);
  {
    const at::NoGradGuard no_grad;
    sums[0].add_(loss.loss_sum);
    sums[1].add_(loss.correct);
    sums[2].add_(logits.size(0));
  }
  return {loss.loss_sum * scale, {}};
}

}  // namespace mnist_train::models
