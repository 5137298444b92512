#pragma once

#include <cstdint>
#include <functional>

namespace mnist_train::models {

/// Calls `compute` and returns how many multiply-adds its convolutions, matrix products and
/// attention take on this thread, as LibTorch's operators are called; nothing else is counted.
std::int64_t count_multiply_adds(const std::function<void()>& compute);

}  // namespace mnist_train::models
