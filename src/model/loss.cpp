#include "model/loss.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>

namespace mnist_train::model {

BatchLoss batch_loss(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing) {
  constexpr std::int64_t kIgnoreNothing = -100;
  // In bf16 a sum of losses would keep two digits.
  return {at::cross_entropy_loss(logits.to(at::kFloat), labels, {}, at::Reduction::Sum,
                                 kIgnoreNothing, label_smoothing),
          at::argmax(logits.detach(), 1).eq(labels).sum()};
}

}  // namespace mnist_train::model
