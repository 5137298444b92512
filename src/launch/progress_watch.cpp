#include "launch/progress_watch.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/system.h"

namespace mnist_train::launch {

namespace {

// A rank that waits speaks first, and names the one that is silent.
constexpr double kMargin_s = 2;

/// Returns whether the rank's updates come regularly.
bool is_in_steps(const RankStatus& status) {
  const auto phase = static_cast<Phase>(status.phase.load());
  return phase == Phase::kTraining || phase == Phase::kEvaluation;
}

void watch(const std::stop_token& stop, const RankStatus& status, double limit_s,
           const ProgressWatch::OnStall& on_stall) {
  std::mutex mutex;
  std::condition_variable_any ended;
  std::unique_lock lock(mutex);
  StallMeter meter(limit_s);
  while (!ended.wait_for(lock, stop, std::chrono::duration<double>(StallMeter::kLookEvery_s),
                         [&stop] { return stop.stop_requested(); })) {
    const double stalled_s = meter.look(status, monotonic_seconds());
    const bool waits = static_cast<Wait>(status.wait.load()) != Wait::kNothing;
    const bool too_long = waits ? stalled_s > limit_s : stalled_s > limit_s + kMargin_s;
    if (too_long && (waits || is_in_steps(status))) return on_stall(stalled_s);
  }
}

}  // namespace

double StallMeter::look(const RankStatus& status, double now_s) {
  const double since_s = now_s - looked_at_s_;
  looked_at_s_ = now_s;
  const Progress progress{status.updated_s.load(), status.waits.load()};
  const bool has_news = progress != seen_ || since_s > long_sleep_s_;
  seen_ = progress;
  stalled_s_ = has_news ? 0 : stalled_s_ + std::min(since_s, 2 * kLookEvery_s);
  return stalled_s_;
}

ProgressWatch::ProgressWatch(const RankStatus& status, double limit_s, OnStall on_stall)
    : thread_(
          start_thread([&status, limit_s, on_stall = std::move(on_stall),
                        stop = stop_.get_token()] { watch(stop, status, limit_s, on_stall); })) {}

ProgressWatch::~ProgressWatch() {
  stop_.request_stop();
  thread_.join();
}

}  // namespace mnist_train::launch
