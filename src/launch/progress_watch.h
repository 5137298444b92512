#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "launch/status_board.h"

namespace mnist_train::launch {

/// Measures how long a rank makes no progress. Only time in which the observer itself was awake
/// counts: a stopped job (SIGSTOP, a frozen cgroup, a paused virtual machine) is not a hung one.
/// The observer may wake up before the rank does, so after a long sleep it counts from zero again.
class StallMeter {
 public:
  static constexpr double kLookEvery_s = 0.2;

  /// `limit_s` is the stall that the observer acts on.
  explicit StallMeter(double limit_s) : long_sleep_s_(std::max(1.0, limit_s / 4)) {}

  /// Returns the seconds without progress. Must be called about every `kLookEvery_s`.
  double look(const RankStatus& status, double now_s);

 private:
  using Progress = std::pair<double, std::int64_t>;  // time of the last update, number of waits

  double long_sleep_s_;
  Progress seen_;
  double looked_at_s_ = 0;
  double stalled_s_ = 0;
};

/// Watches a rank from a thread if no launcher of ours does: the length of its waits for other
/// ranks or its GPU, and the progress of training steps and evaluation batches. Waits then need no
/// time-outs of their own, which would also count time in which the whole job was stopped.
class ProgressWatch {
 public:
  /// Called from the thread with the seconds without progress; should end the process.
  using OnStall = std::function<void(double seconds)>;

  /// A wait may last `limit_s`. `status` must outlive the watch. Throws Error if the system refuses
  /// the thread.
  ProgressWatch(const RankStatus& status, double limit_s, OnStall on_stall);
  ProgressWatch(const ProgressWatch&) = delete;
  ProgressWatch& operator=(const ProgressWatch&) = delete;
  ~ProgressWatch();

 private:
  std::stop_source stop_;
  std::thread thread_;
};

/// Notices a rank whose own work takes so long that the others wait for it in every step. Compares
/// the ranks' time in training steps, less their waits, over windows of a few seconds. One slow
/// window may be chance, so it warns after two in a row.
class StragglerWatch {
 public:
  explicit StragglerWatch(int ranks);

  /// Must be called regularly. Returns a warning for the user, once for each slow rank.
  std::optional<std::string> check(const StatusBoard& board, double now_s);

 private:
  struct RankProgress {
    std::int64_t step = 0;
    double own_s = 0;  // total time of training steps, without waits
    bool warned = false;
  };

  std::vector<RankProgress> ranks_;  // at the begin of the window
  double checked_s_ = 0;
  std::size_t suspect_;  // none: the number of ranks
};

}  // namespace mnist_train::launch
