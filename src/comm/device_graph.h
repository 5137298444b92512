#pragma once

#include <functional>

namespace mnist_train::comm {

/// Work of a device that is recorded once and then repeated by a single call: a CUDA graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Takes down what `work` launches; nothing is computed. All tensors that it reads and writes
  /// have to stay where they are, and it must not wait for the device. Throws Error(kRunFailed).
  virtual void record(const std::function<void()>& work) = 0;
  /// Launches what was recorded, and does not wait for it.
  virtual void replay() = 0;
};

}  // namespace mnist_train::comm
