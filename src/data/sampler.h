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

/// Returns the positions of a range: begin, begin + 1, … end - 1.
std::vector<std::int64_t> positions(const Range& range);

/// Returns the order in which an epoch (counted from 0) visits its samples: a permutation of
/// [0, count) that depends on seed and epoch alone, so every process draws the same one. It is that
/// of PyTorch's DistributedSampler, torch.randperm seeded with seed + epoch, for up to 2^32 / 20
/// samples.
std::vector<std::int64_t> epoch_permutation(std::int64_t count, std::int64_t seed,
                                            std::int64_t epoch);

/// Returns the positions of `range` that belong to `part` of [0, parts). Parts are contiguous, the
/// larger ones come first, and their sizes differ by at most one. The last parts are empty where
/// there are fewer positions than parts.
Range shard(Range range, std::int64_t part, std::int64_t parts);

/// Returns whole numbers that add up to `total`, in proportion to `weights` (not negative, their
/// sum above 0): the largest remainders get what is left, the first of equal ones before the
/// others. Everyone gets at least one as long as there are as many.
std::vector<std::int64_t> apportion(std::int64_t total, const std::vector<double>& weights);

/// Returns the steps of an epoch. Every sample is used, so the last batch may be short.
std::int64_t steps_per_epoch(std::int64_t count, std::int64_t batch_size);

/// The positions in a training set that are trained on, and those that are held out for validation;
/// both ascend.
struct HoldOut {
  std::vector<std::int64_t> trained_on;
  std::vector<std::int64_t> held_out;
};

/// Returns how many of `count` samples a fraction holds out. Throws Error(kData) when that leaves
/// one side empty.
std::int64_t held_out_count(std::int64_t count, double fraction);

/// Draws which of `count` samples a fraction holds out; it follows from the seed alone. Throws
/// Error(kData) as held_out_count does.
HoldOut hold_out(std::int64_t count, double fraction, std::int64_t seed);

/// Orders the samples of sets that each belong to one process (train_per_process). Every sample is
/// visited once an epoch, and every global batch is taken evenly from the sets that have some left.
/// The sets lie one behind the other, as in Dataset::train.
class PerRankSampler {
 public:
  /// `sizes` says how many samples each rank's set has; none of them is 0.
  explicit PerRankSampler(std::vector<std::int64_t> sizes);

  /// Returns which positions of its own order a rank takes in the global batch `global`, whose
  /// size is that of all ranks' ranges together.
  Range shard(Range global, int rank) const;
  /// Returns the order in which a rank visits its own samples in an epoch (counted from 0), as
  /// indices in all sets taken together.
  std::vector<std::int64_t> order(int rank, std::int64_t seed, std::int64_t epoch) const;

  const std::vector<std::int64_t>& sizes() const { return sizes_; }

 private:
  std::vector<std::int64_t> sizes_;
  // by rank: the positions of the global order that are its own, ascending
  std::vector<std::vector<std::int64_t>> positions_;
};

}  // namespace mnist_train::data
