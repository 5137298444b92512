#pragma once

#include <functional>

namespace mnist_train::accelerator {

/// Work of a device that is captured once and then repeated by a single call: a CUDA graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Captures what `work` launches, without computing it. All tensors that it reads and writes must
  /// stay where they are, and it must not wait for the device. Throws Error(kRunFailed).
  virtual void capture(const std::function<void()>& work) = 0;
  /// Launches what was captured, and does not wait for it.
  virtual void replay() = 0;
};

}  // namespace mnist_train::accelerator
