#pragma once

#include <cstdint>
#include <vector>

namespace mnist_train::data {

/// A half-open range of positions [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

/// Returns the positions in a range: begin, begin + 1, … end - 1.
std::vector<std::int64_t> positions(const Range& range);

/// Returns the order in which an epoch (counted from 0) visits its samples: a permutation of
/// [0, count) that depends only on seed and epoch. It matches PyTorch's DistributedSampler
/// (torch.randperm seeded with seed + epoch) for fewer than 2^32 / 20 samples.
std::vector<std::int64_t> epoch_permutation(std::int64_t count, std::int64_t seed,
                                            std::int64_t epoch);

/// Returns the positions of `range` that belong to `part` in [0, parts). Parts are contiguous and
/// differ in size by at most one, the larger ones first. If there are fewer positions than parts,
/// the last parts are empty.
Range shard(Range range, std::int64_t part, std::int64_t parts);

/// Splits `total` into integers in proportion to `weights` (non-negative, with a positive sum) by
/// the largest remainder method; ties go to the first. Each is at least one if `total` allows it.
std::vector<std::int64_t> apportion(std::int64_t total, const std::vector<double>& weights);

/// Returns the number of steps per epoch. Every sample is used, so the last batch may be short.
std::int64_t steps_per_epoch(std::int64_t count, std::int64_t batch_size);

}  // namespace mnist_train::data
