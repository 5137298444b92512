#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::models {

/// Returns left [N,K] times the transpose of right [M,K], plus a row [M] unless that is undefined:
/// [N,M]. All are on a CPU and of one type, f32 or bf16; either factor may be a transposed view.
///
/// In f32 LibTorch's own products are MKL's, which takes less than half of what AMD's processors
/// with AVX-512 can do; oneDNN, which LibTorch brings, too, is as fast on those of all makers.
at::Tensor host_product(const at::Tensor& left, const at::Tensor& right,
                        const at::Tensor& row = {});

}  // namespace mnist_train::models
