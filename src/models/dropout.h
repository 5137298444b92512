#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mnist_train::models {

/// Returns x [N,...] with each number set to 0 with probability `p` and all others divided by
/// 1 - p. What is dropped of a sample is a hash of its seed (`seeds` [N] i64), of `layer`, which
/// tells the dropout layers of a network apart, and of the number's place: so it depends neither on
/// the batch nor on the device nor on how x lies in memory.
at::Tensor hashed_dropout(const at::Tensor& x, const at::Tensor& seeds, std::int64_t layer,
                          double p);

/// Does the same with LibTorch's operations, on any device.
at::Tensor drop_with_operations(const at::Tensor& x, const at::Tensor& seeds, std::int64_t layer,
                                double p);

}  // namespace mnist_train::models
