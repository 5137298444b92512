#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/status_board.h"

namespace mnist_train::launch {

/// Notices a rank whose own work takes so much longer than that of the others that they wait for it
/// step after step. It looks at the time in training steps less the time waited in them, over some
/// seconds; what holds for one look alone may be chance, so it takes two in a row.
class StragglerWatch {
 public:
  explicit StragglerWatch(int ranks);

  /// To be called every now and then. What to tell the user, once a rank.
  std::optional<std::string> look(const StatusBoard& board, double now_s);

 private:
  struct Sample {
    std::int64_t step = 0;
    double own_s = 0;  // in training steps, without waiting
  };
  struct Slowest {
    int rank = 0;
    double own_s = 0;     // a step
    double others_s = 0;  // a step, the middle one of the others
  };

  static Sample sample_of(const RankStatus& status);
  std::optional<Slowest> slowest(const std::vector<Sample>& now) const;

  std::vector<Sample> before_;
  std::vector<bool> warned_;
  double synced_s_ = 0;
  int suspect_ = -1;
};

}  // namespace mnist_train::launch
