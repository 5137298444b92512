#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mnist_train::comm {

/// A piece of the gradients, and of what is laid out like them, in elements.
struct Shard {
  std::int64_t begin = 0;
  std::int64_t size = 0;

  /// A view of it; `flat`: [n].
  at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, begin, size); }
};

}  // namespace mnist_train::comm
