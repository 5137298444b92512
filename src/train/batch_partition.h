#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "data/sampler.h"
#include "settings/data_options.h"

namespace mnist_train::train {

/// What decides which rank works on which samples.
struct PartitionOptions {
  settings::Split split = settings::Split::kEven;
  std::vector<std::int64_t> samples_per_rank{};  // with train_per_process, else empty
};

/// Cuts each global batch into a shard for each rank. All ranks know all shards.
class BatchPartition {
 public:
  virtual ~BatchPartition() = default;

  /// Returns the order in which this rank's shards count the samples of an epoch (from 0), of which
  /// there are `count`. It is the same on all ranks, unless each has a training set of its own.
  virtual std::vector<std::int64_t> order(std::int64_t count, std::int64_t seed,
                                          std::int64_t epoch) const;
  /// Returns the rank's shard of the batch at positions `global`, as positions in the rank's order.
  /// All shards together are as large as `global`; unless ranks have training sets of their own,
  /// they are its parts in the order of the ranks.
  virtual data::Range shard(data::Range global, int rank) const = 0;
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
};

/// Makes the partition that the options ask for. `even`: sizes differ by at most one. `throughput`:
/// in proportion to the samples a second that each rank reached, measured over the last steps; a
/// run, also a resumed one, starts evenly. Training sets for each rank: shards come from its own.
std::unique_ptr<BatchPartition> make_batch_partition(const PartitionOptions& options,
                                                     const comm::Communicator& communicator,
                                                     at::Device device);

}  // namespace mnist_train::train
