#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "data/sampler.h"
#include "settings/data_options.h"

namespace mnist_train::train {

/// What decides who works on which samples.
struct PartitionOptions {
  settings::Split split = settings::Split::kEven;
  std::vector<std::int64_t>
      samples_per_rank{};  // train_per_process: samples of each rank's, else empty
};

/// Which samples of a global batch each rank works on. All ranks know all shares.
class BatchPartition {
 public:
  virtual ~BatchPartition() = default;

  /// The order in which this rank's `share`s count the samples of an epoch (from 0): that of all
  /// ranks, unless each has a set of its own. `count`: of all samples.
  virtual std::vector<std::int64_t> order(std::int64_t count, std::int64_t seed,
                                          std::int64_t epoch) const;
  /// Positions in the rank's order; the shares are together as large as `global`, and without own
  /// sets they are its parts, in the order of the ranks.
  virtual data::Range shard(data::Range global, int rank) const = 0;
  /// Of a large batch, by rank; they add up to 1.
  virtual std::vector<double> weights() const = 0;

  /// How many numbers ride with the gradients for it.
  virtual std::int64_t riders() const { return 0; }
  /// Seconds, for the difference of two calls around this rank's own work; a GPU has done by then
  /// what it was asked before. 0 where nobody measures.
  virtual double clock() const { return 0; }
  /// Before averaging: this rank worked `busy_s` on the step. `riders`
  /// [riders()] f32 are to be summed over the ranks.
  virtual void record(double /*busy_s*/, const at::Tensor& /*riders*/) const {}
  /// After averaging: `samples` of the step, by rank. All ranks see the same numbers and decide
  /// alike. On a GPU this waits.
  virtual void update(const at::Tensor& /*riders*/, const std::vector<std::int64_t>& /*samples*/) {}
};

/// even: sizes differ by at most one. throughput: in proportion to how many samples a second each
/// rank got through, measured over the last steps; the run starts evenly, and so does a resumed
/// one. Own sets: each rank's share comes from its own.
std::unique_ptr<BatchPartition> make_batch_partition(const PartitionOptions& sharing,
                                                     const comm::Communicator& communicator,
                                                     at::Device device);

}  // namespace mnist_train::train
