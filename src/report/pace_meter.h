#pragma once

#include <cstdint>
#include <optional>

#include "report/sink.h"

namespace mnist_train::report {

/// Says about once a second how the steps since the last time went. The first step of a start is
/// left out, because it prepares what the others use again.
class PaceMeter {
 public:
  /// What is known of a step when it is done.
  struct PacedStep {
    std::int64_t number = 0;        // of the run
    std::int64_t samples_seen = 0;  // in the run, with those of this step
    double loss = 0;                // sum over its samples
    double samples = 0;
    double finished_s = 0;  // CLOCK_MONOTONIC
  };

  /// Returns the pace where it is time for one.
  std::optional<Pace> add(const PacedStep& step);
  /// Leaves out the time from the last step until now.
  void pause_until(double now_s);

 private:
  std::optional<PacedStep> last_;  // that the last pace counts
  double loss_ = 0;                // of the steps since then, as the next
  double samples_ = 0;
  double newest_s_ = 0;  // when the last step, or a pause behind it, was over
  bool has_told_ = false;
};

}  // namespace mnist_train::report
