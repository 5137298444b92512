#include "app/rank_times.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace mnist_train::app {

namespace {

constexpr std::size_t kFields = 7;

/// The value below which `share` of the sorted values lie.
double quantile(const std::vector<double>& sorted, double share) {
  const auto last = static_cast<double>(sorted.size() - 1);
  return sorted[static_cast<std::size_t>(std::lround(share * last))];
}

}  // namespace

std::vector<double> pack_times(const train::StepTimes& times, int rank, int world_size) {
  std::vector<double> packed(static_cast<std::size_t>(world_size) * kFields);
  if (times.steps.empty()) return packed;
  std::vector<double> sorted = times.steps;
  std::sort(sorted.begin(), sorted.end());
  const std::array<double, kFields> fields{static_cast<double>(sorted.size()),
                                           times.input,
                                           times.compute,
                                           times.communication,
                                           quantile(sorted, 0.5),
                                           quantile(sorted, 0.95),
                                           sorted.back()};
  std::copy(fields.begin(), fields.end(),
            packed.begin() + static_cast<std::ptrdiff_t>(rank) * std::ptrdiff_t{kFields});
  return packed;
}

std::vector<report::RankTimes> unpack_times(const std::vector<double>& sums) {
  std::vector<report::RankTimes> ranks;
  for (std::size_t begin = 0; begin + kFields <= sums.size(); begin += kFields) {
    const double* field = sums.data() + begin;
    if (field[0] < 1) continue;
    ranks.push_back({static_cast<std::int64_t>(begin / kFields),
                     static_cast<std::int64_t>(field[0]), field[1], field[2], field[3], field[4],
                     field[5], field[6]});
  }
  return ranks;
}

}  // namespace mnist_train::app
