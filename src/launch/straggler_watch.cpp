#include "launch/straggler_watch.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

namespace mnist_train::launch {

namespace {

constexpr double kWindow_s = 3;
constexpr std::int64_t kLeastSteps = 5;
constexpr double kMuchSlower = 1.5;
constexpr double kNoticeable_s = 0.001;  // for a step

}  // namespace

StragglerWatch::StragglerWatch(int ranks)
    : before_(static_cast<std::size_t>(ranks)), warned_(static_cast<std::size_t>(ranks), false) {}

StragglerWatch::RankProgress StragglerWatch::progress_of(const RankStatus& status) {
  return {status.step.load(), status.stepped_s.load() - status.waited_s.load()};
}

/// Returns nothing while the ranks have made too few steps to tell.
std::optional<StragglerWatch::Slowest> StragglerWatch::slowest(
    const std::vector<RankProgress>& now) const {
  std::vector<std::pair<double, int>> seconds;
  for (std::size_t rank = 0; rank < now.size(); ++rank) {
    const std::int64_t steps = now[rank].step - before_[rank].step;
    if (steps < kLeastSteps) return std::nullopt;
    seconds.emplace_back((now[rank].own_s - before_[rank].own_s) / static_cast<double>(steps),
                         static_cast<int>(rank));
  }
  std::sort(seconds.begin(), seconds.end());
  return Slowest{seconds.back().second, seconds.back().first,
                 seconds[(seconds.size() - 1) / 2].first};
}

std::optional<std::string> StragglerWatch::check(const StatusBoard& board, double now_s) {
  if (before_.size() < 2 || now_s - checked_s_ < kWindow_s) return std::nullopt;
  std::vector<RankProgress> now;
  for (std::size_t rank = 0; rank < before_.size(); ++rank) {
    now.push_back(progress_of(board.of(static_cast<int>(rank))));
  }
  const auto found = slowest(now);
  if (!found) return std::nullopt;
  checked_s_ = now_s;
  before_ = std::move(now);
  const bool slow = found->own_s > kMuchSlower * found->others_s &&
                    found->own_s - found->others_s > kNoticeable_s;
  const bool again = slow && suspect_ == found->rank;
  suspect_ = slow ? found->rank : -1;
  if (!again || warned_[static_cast<std::size_t>(found->rank)]) return std::nullopt;
  warned_[static_cast<std::size_t>(found->rank)] = true;
  return fmt::format(
      "rank {} is slow: a step takes it {:.1f} ms, but the others {:.1f} ms, and they wait for it",
      found->rank, 1000 * found->own_s, 1000 * found->others_s);
}

}  // namespace mnist_train::launch
