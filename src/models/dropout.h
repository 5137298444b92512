#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mnist_train::models {

/// Returns x [N,...] with each element set to 0 with probability `p` and the others divided by 1 -
/// p. The decision is a hash of the sample's seed (`seeds` [N] i64), of `layer`, the index of the
/// dropout layer, and of the element's index, so it does not depend on batch, device or layout.
/// cpu_kernels/ makes the same decisions.
at::Tensor hashed_dropout(const at::Tensor& x, const at::Tensor& seeds, std::int64_t layer,
                          double p);

}  // namespace mnist_train::models
