#include "models/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>

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

}  // namespace mnist_train::models
