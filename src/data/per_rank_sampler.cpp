#include "data/per_rank_sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace mnist_train::data {

namespace {

// So that sets of one size are not visited in one order, which would always pair the same samples.
constexpr std::int64_t kSeedsApart = 1'000'003;

}  // namespace

PerRankSampler::PerRankSampler(std::vector<std::int64_t> sizes)
    : sizes_(std::move(sizes)), positions_(sizes_.size()) {
  const std::int64_t total = std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
  for (std::size_t rank = 0, position = 0; position < static_cast<std::size_t>(total);
       rank = (rank + 1) % sizes_.size()) {
    if (static_cast<std::int64_t>(positions_[rank].size()) == sizes_[rank]) continue;
    positions_[rank].push_back(static_cast<std::int64_t>(position++));
  }
}

Range PerRankSampler::shard(Range global, int rank) const {
  const auto& mine = positions_[static_cast<std::size_t>(rank)];
  const auto before = [&mine](std::int64_t position) {
    return std::lower_bound(mine.begin(), mine.end(), position) - mine.begin();
  };
  return {before(global.begin), before(global.end)};
}

std::vector<std::int64_t> PerRankSampler::order(int rank, std::int64_t seed,
                                                std::int64_t epoch) const {
  const auto at = static_cast<std::size_t>(rank);
  auto order = epoch_permutation(sizes_[at], seed + rank * kSeedsApart, epoch);
  const std::int64_t first =
      std::accumulate(sizes_.begin(), sizes_.begin() + rank, std::int64_t{0});
  for (std::int64_t& sample : order) sample += first;
  return order;
}

}  // namespace mnist_train::data
