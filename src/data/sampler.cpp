#include "data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

namespace mnist_train::data {

std::vector<std::int64_t> positions(const Range& range) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(range.size()));
  std::iota(numbers.begin(), numbers.end(), range.begin);
  return numbers;
}

std::vector<std::int64_t> epoch_permutation(std::int64_t count, std::int64_t seed,
                                            std::int64_t epoch) {
  // torch.Generator uses the lower 32 bits of its seed, and torch.randperm shuffles like this.
  const std::uint64_t sum = static_cast<std::uint64_t>(seed) + static_cast<std::uint64_t>(epoch);
  std::mt19937 generator(static_cast<std::uint32_t>(sum));
  std::vector<std::int64_t> order = positions({0, count});
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    std::swap(order[i], order[i + generator() % (order.size() - i)]);
  }
  return order;
}

Range shard(Range range, std::int64_t part, std::int64_t parts) {
  const std::int64_t size = range.size() / parts;
  const std::int64_t larger = range.size() % parts;  // this many parts get one more
  const std::int64_t begin = range.begin + part * size + std::min(part, larger);
  return {begin, begin + size + (part < larger ? 1 : 0)};
}

std::vector<std::int64_t> apportion(std::int64_t total, const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> numbers;
  std::vector<double> remainders;
  for (const double weight : weights) {
    const double quota = static_cast<double>(total) * (weight / sum);
    numbers.push_back(static_cast<std::int64_t>(quota));
    remainders.push_back(quota - std::floor(quota));
  }
  std::int64_t left = total - std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
  for (; left > 0; --left) {
    const auto largest = std::max_element(remainders.begin(), remainders.end());
    ++numbers[static_cast<std::size_t>(largest - remainders.begin())];
    *largest = -1;
  }
  if (total < std::ssize(weights)) return numbers;
  for (std::int64_t& number : numbers) {
    if (number > 0) continue;
    --*std::max_element(numbers.begin(), numbers.end());
    number = 1;
  }
  return numbers;
}

std::int64_t steps_per_epoch(std::int64_t count, std::int64_t batch_size) {
  return count / batch_size + (count % batch_size != 0 ? 1 : 0);
}

}  // namespace mnist_train::data
