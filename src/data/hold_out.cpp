#include "data/hold_out.h"

#include <cmath>
#include <string>

#include "base/error.h"
#include "data/sampler.h"

namespace mnist_train::data {

namespace {

constexpr std::int64_t kBeforeTheFirstEpoch = -1;

}  // namespace

std::int64_t held_out_count(std::int64_t count, double fraction) {
  const std::int64_t held = std::llround(fraction * static_cast<double>(count));
  if (fraction > 0 && (held == 0 || held == count)) {
    throw Error(ExitCode::kData, "data.validation holds out " + std::to_string(held) + " of " +
                                     std::to_string(count) +
                                     " training samples; both sides need at least one");
  }
  return held;
}

HoldOut hold_out(std::int64_t count, double fraction, std::int64_t seed) {
  const std::int64_t held = held_out_count(count, fraction);
  if (held == 0) return {positions({0, count}), {}};
  const auto order = epoch_permutation(count, seed, kBeforeTheFirstEpoch);
  std::vector<bool> marked(order.size());
  for (std::size_t i = 0; i < static_cast<std::size_t>(held); ++i) {
    marked[static_cast<std::size_t>(order[i])] = true;
  }
  HoldOut parts;
  for (std::int64_t position = 0; position < count; ++position) {
    (marked[static_cast<std::size_t>(position)] ? parts.held_out : parts.trained_on)
        .push_back(position);
  }
  return parts;
}

}  // namespace mnist_train::data
