#pragma once

#include <memory>

#include "accelerator/device.h"

namespace mnist_train::train {

/// Keeps the host from running further ahead of its GPU than a few steps. A launch blocks without
/// a time-out once the device's queue is full, as it becomes when the device hangs; so the host
/// must come to a wait that has one (see accelerator::limit_waits) before that.
class RunAheadLimit {
 public:
  /// `steps`: the host is at least so many ahead when it has to wait, and at most twice as many.
  RunAheadLimit(at::Device device, int steps);

  /// Counts a step that was launched; now and then waits until the GPU has come to the step `steps`
  /// before it. On a CPU does nothing. Throws PeerError when the GPU does not come there in time.
  void step_launched();

 private:
  int steps_;
  int launched_ = 0;  // since `last_` was recorded
  std::unique_ptr<accelerator::DeviceEvent> last_;
  std::unique_ptr<accelerator::DeviceEvent> next_;
};

}  // namespace mnist_train::train
