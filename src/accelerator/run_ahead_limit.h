#pragma once

#include <memory>

#include "accelerator/device.h"

namespace mnist_train::accelerator {

/// Keeps the host from running further ahead of its GPU than a few steps or batches. A launch
/// blocks unseen once the device's queue is full, as it becomes when the device hangs; so the host
/// must come to a wait that the status shows (see `show_waits_on`) before that.
class RunAheadLimit {
 public:
  /// `steps`: the host is at least so many ahead when it has to wait, and at most twice as many.
  RunAheadLimit(at::Device device, int steps);

  /// Counts a step that was launched; after every `steps` of them waits until the GPU has come to
  /// where the host was `steps` before. Does nothing on a CPU.
  void step_launched();

 private:
  int steps_;
  int launched_ = 0;  // since `last_` was recorded
  std::unique_ptr<DeviceEvent> last_;
  std::unique_ptr<DeviceEvent> next_;
};

}  // namespace mnist_train::accelerator
