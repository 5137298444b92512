#pragma once

namespace mnist_train::grid {

/// The order in which the threads of a block and the blocks of a grid begin.
enum class Order { kForwards, kBackwards };

inline Order order = Order::kForwards;

/// While it exists, threads and blocks begin in this order.
class ScopedOrder {
 public:
  explicit ScopedOrder(Order changed) { order = changed; }
  ScopedOrder(const ScopedOrder&) = delete;
  ScopedOrder& operator=(const ScopedOrder&) = delete;
  ~ScopedOrder() { order = Order::kForwards; }
};

}  // namespace mnist_train::grid
