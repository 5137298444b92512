#include "model/loss.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>

namespace mnist_train::model {

BatchLoss batch_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return {at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum),
          at::argmax(logits.detach(), 1).eq(labels).sum()};
}

}  // namespace mnist_train::model
