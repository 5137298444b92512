#include "launch/straggler_watch.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace mnist_train::launch {

namespace {

constexpr double kWindow_s = 3;
constexpr std::int64_t kLeastSteps = 5;
constexpr double kMuchSlower = 1.5;
constexpr double kWorthAWord_s = 0.001;  // a step

std::string milliseconds(double seconds) {
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%.1f ms", 1000 * seconds);
  return text.data();
}

}  // namespace

StragglerWatch::StragglerWatch(int ranks)
    : before_(static_cast<std::size_t>(ranks)), warned_(static_cast<std::size_t>(ranks), false) {}

StragglerWatch::Sample StragglerWatch::sample_of(const RankStatus& status) {
  return {status.step.load(), status.stepped_s.load() - status.waited_s.load()};
}

/// Nothing while the ranks have made too few steps to tell.
std::optional<StragglerWatch::Slowest> StragglerWatch::slowest(
    const std::vector<Sample>& now) const {
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

std::optional<std::string> StragglerWatch::look(const StatusBoard& board, double now_s) {
  if (before_.size() < 2 || now_s - synced_s_ < kWindow_s) return std::nullopt;
  std::vector<Sample> now;
  for (std::size_t rank = 0; rank < before_.size(); ++rank) {
    now.push_back(sample_of(board.of(static_cast<int>(rank))));
  }
  const auto found = slowest(now);
  if (!found) return std::nullopt;
  synced_s_ = now_s;
  before_ = std::move(now);
  const bool slow = found->own_s > kMuchSlower * found->others_s &&
                    found->own_s - found->others_s > kWorthAWord_s;
  const bool again = slow && suspect_ == found->rank;
  suspect_ = slow ? found->rank : -1;
  if (!again || warned_[static_cast<std::size_t>(found->rank)]) return std::nullopt;
  warned_[static_cast<std::size_t>(found->rank)] = true;
  return "rank " + std::to_string(found->rank) + " is slow: a step takes it " +
         milliseconds(found->own_s) + ", the others " + milliseconds(found->others_s) +
         ", and they wait for it";
}

}  // namespace mnist_train::launch
