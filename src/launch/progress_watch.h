#pragma once

#include <functional>
#include <thread>

#include "launch/status_board.h"

namespace mnist_train::launch {

/// Watches from a thread of its own, for as long as it lives, that a rank makes progress in
/// training steps and evaluation batches. It finds the waits that have no time-out of their own,
/// as LibTorch's for a GPU, where no launcher of ours does.
class ProgressWatch {
 public:
  /// Called from the thread with the seconds without progress; should end the process.
  using OnStall = std::function<void(double seconds)>;

  /// `status` must outlive the watch.
  ProgressWatch(const RankStatus& status, double limit_s, OnStall on_stall);

 private:
  std::jthread thread_;
};

}  // namespace mnist_train::launch
