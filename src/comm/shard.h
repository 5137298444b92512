#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mnist_train::comm {

/// A range of the elements of the flat gradients, and of weights and optimizer state, which are
/// laid out like them.
struct Shard {
  std::int64_t begin = 0;
  std::int64_t size = 0;

  /// Returns the shard of `flat` [n] as a view.
  at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, begin, size); }
};

}  // namespace mnist_train::comm
