#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "data/sampler.h"
#include "settings/data_options.h"

namespace mnist_train::train {

/// What decides which rank works on which samples.
struct PartitionOptions {
  settings::Split split = settings::Split::kEven;
  std::vector<std::int64_t> samples_per_rank{};  // with train_per_process, else empty
  std::optional<std::int64_t> shards{};          // of a batch, whatever the number of ranks
};

/// Cuts each global batch into shards, one for each rank unless their number is fixed. All ranks
/// know all shards.
class BatchPartition {
 public:
  /// Rank i computes the shards from `begins[i]` to `begins[i + 1]`.
  BatchPartition(std::vector<std::int64_t> begins, int rank);
  virtual ~BatchPartition() = default;

  std::int64_t shards() const { return begins_.back(); }
  /// Returns the numbers of this rank's shards, of which there is one at least.
  data::Range own_shards() const { return {begins_[rank_], begins_[rank_ + 1]}; }
  /// Returns where each rank's shards begin, and behind them the number of all.
  const std::vector<std::int64_t>& begins() const { return begins_; }

  /// Returns the order in which this rank's shards count the samples of an epoch (from 0), of which
  /// there are `count`. It is the same on all ranks, unless each has a training set of its own.
  virtual std::vector<std::int64_t> order(std::int64_t count, std::int64_t seed,
                                          std::int64_t epoch) const;
  /// Returns shard number `number` of the batch at positions `global`, as positions in the order of
  /// the rank that computes it. All shards together are as large as `global`; unless ranks have
  /// training sets of their own, they are its parts in order.
  virtual data::Range shard(data::Range global, std::int64_t number) const = 0;
  /// Returns how many scalars it adds to the step's statistics.
  virtual std::int64_t statistics() const { return 0; }
  /// Starts the clock of this rank's own work on a step.
  virtual void begin_work() {}
  /// Stops that clock, before averaging, and records the time in `statistics` [n] f32, which will
  /// be summed over the ranks. On a GPU it waits for the work.
  virtual void end_work(const at::Tensor& /*statistics*/) {}
  /// Takes the summed statistics of a step of which rank i worked on `samples[i]` samples. All
  /// ranks see the same numbers and decide alike. On a GPU it waits for the step.
  virtual void update(const at::Tensor& /*statistics*/,
                      const std::vector<std::int64_t>& /*samples*/) {}

 private:
  std::vector<std::int64_t> begins_;
  std::size_t rank_;
};

/// Makes the partition that the options ask for. `even`: sizes differ by at most one. `throughput`:
/// in proportion to the samples a second that each rank reached, measured over the last steps; a
/// run, also a resumed one, starts evenly. Training sets for each rank: shards come from its own.
/// `shards`: so many even ones, whatever the number of ranks. Throws Error(kConfig) where there are
/// more ranks than shards.
std::unique_ptr<BatchPartition> make_batch_partition(const PartitionOptions& options,
                                                     const comm::Communicator& communicator,
                                                     at::Device device);

}  // namespace mnist_train::train
