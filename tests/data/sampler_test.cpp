#include "data/sampler.h"

#include "support/catch.h"

namespace mnist_train::data {
namespace {

std::vector<std::int64_t> first(const std::vector<std::int64_t>& order, std::ptrdiff_t count) {
  return {order.begin(), order.begin() + count};
}

TEST_CASE("numbers apportioned by the largest-remainder method add up to the total") {
  using Numbers = std::vector<std::int64_t>;
  CHECK(apportion(128, {1, 1}) == Numbers{64, 64});
  CHECK(apportion(128, {2, 1}) == Numbers{85, 43});     // 85.3 and 42.7
  CHECK(apportion(10, {1, 1, 1}) == Numbers{4, 3, 3});  // the first of equal remainders wins
  CHECK(apportion(10, {5, 3, 2}) == Numbers{5, 3, 2});
  CHECK(apportion(7, {0.5, 0.25, 0.25}) == Numbers{3, 2, 2});  // 3.5, 1.75 and 1.75
  CHECK(apportion(0, {1, 2}) == Numbers{0, 0});
  CHECK(apportion(1, {1, 2}) == Numbers{0, 1});
  CHECK(apportion(5, {1, 1000, 0}) == Numbers{1, 3, 1});  // enough for at least one each
  CHECK(apportion(2, {1, 1, 1000}) == Numbers{0, 0, 2});  // not enough for one each
  for (std::int64_t total = 0; total < 40; ++total) {
    for (const std::vector<double>& weights :
         {std::vector<double>{1, 1, 1}, {0.1, 0.7, 0.2}, {1e-9, 1, 1e9}, {3}}) {
      const Numbers numbers = apportion(total, weights);
      std::int64_t sum = 0;
      for (const std::int64_t number : numbers) {
        CHECK(number >= (total >= static_cast<std::int64_t>(weights.size()) ? 1 : 0));
        sum += number;
      }
      CHECK(sum == total);
    }
  }
}

TEST_CASE("the order of samples in an epoch never changes between versions") {
  // Checkpoints store a position in this order, so a resumed run would train on wrong samples.
  // Expected: torch.randperm(60000, generator=torch.Generator().manual_seed(seed + epoch))[:8] in
  // PyTorch 2.11.
  CHECK(first(epoch_permutation(60000, 1, 0), 8) ==
        std::vector<std::int64_t>{35845, 27522, 33254, 23645, 11299, 16178, 58355, 27002});
  CHECK(first(epoch_permutation(60000, 1, 1), 8) ==
        std::vector<std::int64_t>{43848, 54736, 56013, 37602, 59754, 51214, 42432, 44443});
  CHECK(first(epoch_permutation(60000, 2, 0), 8) ==
        std::vector<std::int64_t>{43848, 54736, 56013, 37602, 59754, 51214, 42432, 44443});
}

TEST_CASE("an epoch visits every sample once") {
  for (const std::int64_t count : {0, 1, 2, 3, 10, 127, 1000, 60000}) {
    for (const std::int64_t seed : {std::int64_t{0}, std::int64_t{1}, INT64_MAX}) {
      std::vector<std::int64_t> order = epoch_permutation(count, seed, 3);
      REQUIRE(static_cast<std::int64_t>(order.size()) == count);
      std::sort(order.begin(), order.end());
      for (std::int64_t i = 0; i < count; ++i) REQUIRE(order[static_cast<std::size_t>(i)] == i);
    }
  }
}

TEST_CASE("shards cover a range in order, and their sizes differ by at most one") {
  for (const std::int64_t begin : {0, 37}) {
    for (std::int64_t size = 0; size <= 140; ++size) {
      for (std::int64_t parts = 1; parts <= 17; ++parts) {
        const Range range{begin, begin + size};
        std::int64_t next = range.begin;
        std::int64_t previous = INT64_MAX;
        for (std::int64_t part = 0; part < parts; ++part) {
          const Range own = shard(range, part, parts);
          REQUIRE(own.begin == next);
          REQUIRE(own.size() <= previous);
          REQUIRE(own.size() >= size / parts);
          REQUIRE(own.size() <= size / parts + 1);
          previous = own.size();
          next = own.end;
        }
        REQUIRE(next == range.end);
      }
    }
  }
}

TEST_CASE("the steps of an epoch use every sample, and only the last one may be short") {
  for (const std::int64_t count : {1, 127, 128, 129, 1000, 60000}) {
    for (const std::int64_t batch_size :
         {std::int64_t{1}, std::int64_t{7}, std::int64_t{128}, std::int64_t{60001}, INT64_MAX}) {
      const std::int64_t steps = steps_per_epoch(count, batch_size);
      const std::int64_t last = count - (steps - 1) * batch_size;
      REQUIRE(last >= 1);
      REQUIRE(last <= batch_size);
    }
  }
  CHECK(steps_per_epoch(60000, 128) == 469);
}

}  // namespace
}  // namespace mnist_train::data
