#include "launch/progress_watch.h"

#include <spdlog/fmt/fmt.h>

#include <condition_variable>
#include <mutex>

#include "base/system.h"

namespace mnist_train::launch {

namespace {

void watch(const std::stop_token& stop, const RankStatus& status, double limit_s,
           const ProgressWatch::OnStall& on_stall) {
  constexpr double kMargin_s = 2;  // a waiting rank speaks first, and names the silent one
  std::mutex mutex;
  std::condition_variable_any ended;
  std::unique_lock lock(mutex);
  StallMeter meter(limit_s);
  while (!ended.wait_for(lock, stop, std::chrono::duration<double>(StallMeter::kLookEvery_s),
                         [&stop] { return stop.stop_requested(); })) {
    const double stalled_s = meter.look(status, monotonic_seconds());
    const Phase phase = status.phase;
    const bool waits = status.wait != Wait::kNothing;
    const bool steps = phase == Phase::kTraining || phase == Phase::kEvaluation;
    const bool too_long = stalled_s > limit_s + (waits ? 0 : kMargin_s);
    if (too_long && (waits || steps)) return on_stall(stalled_s);
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

StragglerWatch::StragglerWatch(int ranks)
    : ranks_(static_cast<std::size_t>(ranks)), suspect_(ranks_.size()) {}

std::optional<std::string> StragglerWatch::check(const StatusBoard& board, double now_s) {
  constexpr double kWindow_s = 3;
  constexpr std::int64_t kMinSteps = 5;
  constexpr double kMuchSlower = 1.5;
  constexpr double kNoticeable_s = 0.001;  // in a step
  const std::size_t count = ranks_.size();
  if (count < 2 || now_s - checked_s_ < kWindow_s) return std::nullopt;
  std::vector<RankProgress> now = ranks_;
  std::vector<std::pair<double, std::size_t>> step_s;  // a rank's own time in a step, and the rank
  for (std::size_t rank = 0; rank < count; ++rank) {
    const RankStatus& status = board.of(static_cast<int>(rank));
    now[rank].step = status.step.load();
    now[rank].own_s = status.stepped_s.load() - status.waited_s.load();
    const std::int64_t steps = now[rank].step - ranks_[rank].step;
    if (steps < kMinSteps) return std::nullopt;
    step_s.emplace_back((now[rank].own_s - ranks_[rank].own_s) / static_cast<double>(steps), rank);
  }
  checked_s_ = now_s;
  ranks_ = std::move(now);
  std::sort(step_s.begin(), step_s.end());
  const auto [slowest_s, slowest] = step_s.back();
  const double others_s = step_s[(count - 1) / 2].first;  // the median
  const bool is_slow = slowest_s > kMuchSlower * others_s && slowest_s - others_s > kNoticeable_s;
  const bool is_slow_again = is_slow && suspect_ == slowest;
  suspect_ = is_slow ? slowest : count;
  if (!is_slow_again || std::exchange(ranks_[slowest].warned, true)) return std::nullopt;
  return fmt::format(
      "rank {} is slow: its steps take {:.1f} ms, those of the others {:.1f} ms, so they wait for "
      "it",
      slowest, 1000 * slowest_s, 1000 * others_s);
}

}  // namespace mnist_train::launch
