#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/status_board.h"

namespace mnist_train::launch {

/// Notices a rank that takes so much longer for its own work than the others do that they wait for
/// it at every step. It compares the seconds that each rank spent in training steps, less those
/// that it waited in them, over windows of some seconds. One slow window may be chance, so it warns
/// after two in a row.
class StragglerWatch {
 public:
  explicit StragglerWatch(int ranks);

  /// Must be called every now and then. Returns a warning for the user, once for each slow rank.
  std::optional<std::string> check(const StatusBoard& board, double now_s);

 private:
  struct RankProgress {
    std::int64_t step = 0;
    double own_s = 0;  // in training steps so far, without waiting
  };
  struct Slowest {
    int rank = 0;
    double own_s = 0;     // for a step
    double others_s = 0;  // for a step, the median of the others
  };

  static RankProgress progress_of(const RankStatus& status);
  std::optional<Slowest> slowest(const std::vector<RankProgress>& now) const;

  std::vector<RankProgress> before_;
  std::vector<bool> warned_;
  double checked_s_ = 0;
  int suspect_ = -1;
};

}  // namespace mnist_train::launch
