#include "data/sampler.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace mnist_train::data {

namespace {

__extension__ using Uint128 = unsigned __int128;

/// SplitMix64's step: neighbouring inputs give unrelated outputs.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

/// A number of [0, bound) without bias. std::uniform_int_distribution would give other numbers with
/// another standard library.
std::uint64_t draw_below(std::uint64_t bound, std::mt19937_64& generator) {
  Uint128 product = Uint128{generator()} * bound;
  if (static_cast<std::uint64_t>(product) < bound) {
    const std::uint64_t threshold = (0 - bound) % bound;  // 2^64 mod bound
    while (static_cast<std::uint64_t>(product) < threshold) product = Uint128{generator()} * bound;
  }
  return static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

std::vector<std::int64_t> epoch_permutation(std::int64_t count, std::int64_t seed,
                                            std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::mt19937_64 generator(
      mix(mix(static_cast<std::uint64_t>(seed)) + static_cast<std::uint64_t>(epoch)));
  for (std::size_t left = order.size(); left > 1; --left) {
    std::swap(order[left - 1], order[draw_below(left, generator)]);
  }
  return order;
}

Range share(Range range, std::int64_t part, std::int64_t parts) {
  const std::int64_t size = range.size() / parts;
  const std::int64_t larger = range.size() % parts;  // that many parts get one more
  const std::int64_t begin = range.begin + part * size + std::min(part, larger);
  return {begin, begin + size + (part < larger ? 1 : 0)};
}

Range global_batch(std::int64_t count, std::int64_t batch_size, std::int64_t step) {
  const std::int64_t begin = step * batch_size;
  return {begin, std::min(begin + batch_size, count)};
}

std::int64_t steps_per_epoch(std::int64_t count, std::int64_t batch_size) {
  return count / batch_size + (count % batch_size != 0 ? 1 : 0);
}

}  // namespace mnist_train::data
