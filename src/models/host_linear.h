#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::models {

// The products of a linear layer on a CPU. All tensors of a call are f32, or all bf16. Kernels of
// our own compute them on processors with AVX512-BF16, else LibTorch does.

/// Returns whether this processor has the instructions for kernels of our own. What these compute
/// of a sample does not depend on the others, to the last bit.
bool has_own_host_linear();

/// Returns x [N,I] times the transpose of weight [O,I], plus bias [O]: [N,O]; with `relu` what is
/// positive of it, and NaNs.
at::Tensor host_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       bool relu);
/// Returns the gradient [N,I] of x, from that of the result [N,O].
at::Tensor host_linear_input_gradient(const at::Tensor& gradient, const at::Tensor& weight);
/// Returns the gradient [O,I] of the weight, from that of the result [N,O]. Kernels of our own
/// write it to `place` where that is defined, and return a view of it.
at::Tensor host_linear_weight_gradient(const at::Tensor& gradient, const at::Tensor& x,
                                       const at::Tensor& place = {});

}  // namespace mnist_train::models
