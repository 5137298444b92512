#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::model {

/// ReLU and 2x2 max-pooling with stride 2 in one pass, each way: what `max_pool2d(relu(x), 2)`
/// gives, bit for bit, forward and backward, NaN included. On CPUs a kernel of our own for fp32 and
/// bf16; elsewhere LibTorch's two. \param x  // [N,C,H,W] \return   // [N,C,H/2,W/2], channels last
/// on a CPU; an odd last row or column is left out
at::Tensor relu_max_pool(const at::Tensor& x);

}  // namespace mnist_train::model
