#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::models {

/// Returns `max_pool2d(relu(x), 2)` [N,C,H/2,W/2] of x [N,C,H,W], without an odd last row or
/// column. Numbers and gradients are LibTorch's, NaN included, but zeros are always +0. On a CPU
/// one kernel for fp32 and bf16 does both operations, and the result is channels last.
at::Tensor relu_max_pool(const at::Tensor& x);

}  // namespace mnist_train::models
