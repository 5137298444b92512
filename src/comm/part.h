#pragma once

#include <cstdint>

namespace mnist_train::comm {

/// A piece of the gradients, and of what is laid out like them, in elements.
struct Part {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

}  // namespace mnist_train::comm
