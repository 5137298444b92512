#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/softmax_loss.h"

namespace mnist_train::models {

/// Returns whether `host_softmax_loss` computes the loss of such logits.
bool can_host_softmax_loss(const at::Tensor& logits);

/// Does on a CPU what kernels::softmax_loss does on a GPU: one pass over the logits in the place of
/// a dozen of LibTorch's operations, which for a batch of ten classes cost more than it computes.
void host_softmax_loss(const kernels::SoftmaxLossInput& input, double scale,
                       const at::Tensor& gradient, const at::Tensor& sums);

}  // namespace mnist_train::models
