#include "app/sync_interval.h"

#include <ATen/ops/full.h>

#include <algorithm>

#include "base/system.h"

namespace mnist_train::app {

namespace {

constexpr double kLongest_s = 0.5;
constexpr std::int64_t kMostSteps = 50;

at::Tensor one_number(std::int64_t value, at::Device device) {
  return at::full({1}, value, at::TensorOptions(at::kLong).device(device));
}

}  // namespace

std::int64_t next_interval(std::int64_t steps, double seconds) {
  // Twice as many at most: the few that were timed may have been quick by chance.
  const std::int64_t most = std::min(2 * steps, kMostSteps);
  const double in_time = kLongest_s * static_cast<double>(steps) / std::max(seconds, 1e-9);
  return in_time < static_cast<double>(most)
             ? std::max<std::int64_t>(1, static_cast<std::int64_t>(in_time))
             : most;
}

SyncInterval::SyncInterval(const comm::Communicator& communicator, at::Device device,
                           bool runs_ahead)
    : communicator_(communicator), device_(device), synced_s_(monotonic_seconds()) {
  at::Tensor count = one_number(runs_ahead ? 1 : 0, device);
  communicator_.all_reduce_sum(count);
  any_runs_ahead_ = count.item<std::int64_t>() > 0;
}

void SyncInterval::begin_epoch() {
  steps_ = 0;
  synced_s_ = monotonic_seconds();
}

void SyncInterval::synced() {
  const double now_s = monotonic_seconds();
  if (any_runs_ahead_) {
    at::Tensor interval = one_number(next_interval(steps_, now_s - synced_s_), device_);
    communicator_.broadcast(interval);
    interval_ = interval.item<std::int64_t>();
  }
  steps_ = 0;
  synced_s_ = now_s;
}

}  // namespace mnist_train::app
