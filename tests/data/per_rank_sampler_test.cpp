#include "data/per_rank_sampler.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/catch.h"

namespace mnist_train::data {
namespace {

TEST_CASE("every sample of every set comes once an epoch, at every batch size") {
  const auto sizes = GENERATE(values<std::vector<std::int64_t>>({{7}, {5, 5}, {1, 9, 4}}));
  const auto batch_size = GENERATE(std::int64_t{1}, 3, 4, 20);
  const PerRankSampler sets(sizes);
  const auto total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<std::int64_t> begin(sizes.size());
  for (std::int64_t at = 0; at < total; at += batch_size) {
    const Range global{at, std::min(at + batch_size, total)};
    std::int64_t together = 0;
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
      const Range share = sets.shard(global, static_cast<int>(rank));
      CHECK(share.begin == begin[rank]);
      begin[rank] = share.end;
      together += share.size();
    }
    CHECK(together == global.size());
  }
  CHECK(begin == sizes);
}

TEST_CASE("batches are taken evenly from the sets that have some left") {
  const PerRankSampler sets({2, 6});
  const auto shares = [&sets](Range global) {
    return std::vector{sets.shard(global, 0).size(), sets.shard(global, 1).size()};
  };
  CHECK(shares({0, 3}) == std::vector<std::int64_t>{2, 1});
  CHECK(shares({0, 4}) == std::vector<std::int64_t>{2, 2});
  CHECK(shares({4, 8}) == std::vector<std::int64_t>{0, 4});
}

TEST_CASE(
    "each rank's order is a permutation of its own samples, another one in each epoch and rank") {
  const PerRankSampler sets({50, 50});
  const auto first = sets.order(0, 1, 0);
  const auto second = sets.order(1, 1, 0);
  for (const auto& [order, begin] : {std::pair(first, 0), std::pair(second, 50)}) {
    auto sorted = order;
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::int64_t> expected(50);
    std::iota(expected.begin(), expected.end(), begin);
    CHECK(sorted == expected);
  }
  std::vector<std::int64_t> moved = first;
  for (std::int64_t& sample : moved) sample += 50;
  CHECK(moved != second);
  CHECK(first != sets.order(0, 1, 1));
  CHECK(first != sets.order(0, 2, 0));
  CHECK(first == PerRankSampler({50, 50}).order(0, 1, 0));
}

}  // namespace
}  // namespace mnist_train::data
