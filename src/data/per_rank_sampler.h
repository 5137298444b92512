#pragma once

#include <cstdint>
#include <vector>

#include "data/sampler.h"

namespace mnist_train::data {

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
  // By rank: which positions of the global order are its own, ascending.
  std::vector<std::vector<std::int64_t>> positions_;
};

}  // namespace mnist_train::data
