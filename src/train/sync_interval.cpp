#include "train/sync_interval.h"

#include <algorithm>

#include "base/system.h"
#include "train/step_history.h"

namespace mnist_train::train {

namespace {

constexpr double kLongest_s = 0.5;
constexpr std::int64_t kMostSteps = StepHistory::kSteps;

}  // namespace

std::int64_t next_interval(std::int64_t steps, double seconds) {
  // At most twice as many: the few steps that were timed may have been quick by chance.
  const std::int64_t most = std::min(2 * steps, kMostSteps);
  const double in_time = kLongest_s * static_cast<double>(steps) / std::max(seconds, 1e-9);
  return in_time < static_cast<double>(most)
             ? std::max<std::int64_t>(1, static_cast<std::int64_t>(in_time))
             : most;
}

SyncInterval::SyncInterval(const comm::Communicator& communicator, bool runs_ahead)
    : communicator_(communicator),
      any_runs_ahead_(communicator.sum_over_ranks(runs_ahead ? 1 : 0) > 0),
      synced_s_(monotonic_seconds()) {}

void SyncInterval::begin_epoch() {
  steps_ = 0;
  synced_s_ = monotonic_seconds();
}

void SyncInterval::synced() {
  const double now_s = monotonic_seconds();
  if (any_runs_ahead_) {
    const std::int64_t own = next_interval(steps_, now_s - synced_s_);
    const bool decides = communicator_.rank() == 0;
    interval_ = static_cast<std::int64_t>(
        communicator_.sum_over_ranks(decides ? static_cast<double>(own) : 0));
  }
  steps_ = 0;
  synced_s_ = now_s;
}

}  // namespace mnist_train::train
