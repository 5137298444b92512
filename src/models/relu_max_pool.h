#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::models {

/// ReLU and 2x2 max-pooling with stride 2 in one pass: the numbers and gradients of
/// `max_pool2d(relu(x), 2)`, NaN included (but a zero is always +0). On CPUs a kernel of our own
/// for fp32 and bf16; in other places LibTorch's two.
/// `x` is [N,C,H,W]; the result [N,C,H/2,W/2], channels last on a CPU, without an odd last row or
/// column.
at::Tensor relu_max_pool(const at::Tensor& x);

}  // namespace mnist_train::models
