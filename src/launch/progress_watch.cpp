#include "launch/progress_watch.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/system.h"

namespace mnist_train::launch {

namespace {

constexpr double kLookEvery_s = 0.5;

bool is_watched(const RankStatus& status) {
  const auto phase = static_cast<Phase>(status.phase.load());
  return phase == Phase::kTraining || phase == Phase::kEvaluation;
}

void watch(const std::stop_token& stop, const RankStatus& status, double limit_s,
           const ProgressWatch::OnStall& on_stall) {
  std::mutex mutex;
  std::condition_variable_any ended;
  std::unique_lock lock(mutex);
  double looked_at_s = monotonic_seconds();
  double awake_since_s = looked_at_s;
  while (!ended.wait_for(lock, stop, std::chrono::duration<double>(kLookEvery_s),
                         [&stop] { return stop.stop_requested(); })) {
    const double now_s = monotonic_seconds();
    // When this process itself was stopped (Ctrl-Z, a suspended machine), so was the rank.
    if (now_s - looked_at_s > 5.0) awake_since_s = now_s;
    looked_at_s = now_s;
    const double stalled_s = now_s - std::max(status.updated_s.load(), awake_since_s);
    if (is_watched(status) && stalled_s > limit_s) return on_stall(stalled_s);
  }
}

}  // namespace

ProgressWatch::ProgressWatch(const RankStatus& status, double limit_s, OnStall on_stall)
    : thread_([&status, limit_s, on_stall = std::move(on_stall)](const std::stop_token& stop) {
        watch(stop, status, limit_s, on_stall);
      }) {}

}  // namespace mnist_train::launch
