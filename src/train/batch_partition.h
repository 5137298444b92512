#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "data/sampler.h"
#include "loader/batch_source.h"
#include "settings/data_options.h"

namespace mnist_train::train {

struct PartitionOptions {
  settings::Split split = settings::Split::kEven;
  std::vector<std::int64_t> samples_per_rank{};  // with train_per_process, else empty
  std::optional<std::int64_t> shards{};          // of a batch, whatever the number of ranks
};

/// Cuts each global batch into shards, one per rank unless their number is fixed. All ranks know
/// all shards. This class cuts evenly: sizes differ by at most one.
class BatchPartition {
 public:
  /// Rank i computes the shards from `begins[i]` to `begins[i + 1]`.
  BatchPartition(std::vector<std::int64_t> begins, int rank);
  virtual ~BatchPartition() = default;

  std::int64_t shards() const { return begins_.back(); }
  /// Returns the numbers of this rank's shards, at least one.
  data::Range own_shards() const { return {begins_[rank_], begins_[rank_ + 1]}; }
  /// Returns each rank's first shard, followed by the number of all shards.
  const std::vector<std::int64_t>& begins() const { return begins_; }

  /// Returns the order of this rank's `count` samples in an epoch (from 0).
  std::vector<std::int64_t> order(std::int64_t count, std::int64_t seed, std::int64_t epoch) const {
    return order_of(static_cast<int>(rank_), count, seed, epoch);
  }
  /// Returns the order of any rank. It is the same for all ranks, unless each has its own training
  /// set.
  virtual std::vector<std::int64_t> order_of(int rank, std::int64_t count, std::int64_t seed,
                                             std::int64_t epoch) const;
  /// Returns the number of different orders: 1, or that of the ranks.
  virtual int orders() const { return 1; }
  /// Returns shard number `number` of the batch at positions `global`, as positions in the order of
  /// the rank that computes it. All shards together are as large as `global`; they are its parts in
  /// order, unless ranks have their own training sets.
  virtual data::Range shard(data::Range global, std::int64_t number) const;
  /// Returns the number of scalars that it adds to the step's statistics.
  virtual std::int64_t statistics() const { return 0; }
  /// Starts the clock of this rank's own work on a step.
  virtual void begin_work() {}
  /// Stops that clock, before averaging, and writes the time to `statistics` [n] f32, which are
  /// then summed over the ranks. Waits for a GPU.
  virtual void end_work(const at::Tensor& /*statistics*/) {}
  /// Takes the summed statistics of a step in which rank i worked on `samples[i]` samples. All
  /// ranks see the same numbers and decide alike. Waits for a GPU.
  virtual void update(const at::Tensor& /*statistics*/,
                      const std::vector<std::int64_t>& /*samples*/) {}

 protected:
  std::vector<std::int64_t> begins_;
  std::size_t rank_;
};

/// Makes the partition of the options. `even`: sizes differ by at most one. `throughput`: in
/// proportion to each rank's samples per second, measured over the last steps; a run, also a
/// resumed one, starts evenly. With training sets for each rank shards come from its own. `shards`:
/// a fixed number of even ones. Throws Error(kConfig) if there are more ranks than shards.
std::unique_ptr<BatchPartition> make_batch_partition(const PartitionOptions& options,
                                                     const comm::Communicator& communicator,
                                                     at::Device device);

/// Class weights of the loss, as in torch.nn.CrossEntropyLoss: the loss of a step is the sum of its
/// samples' weighted losses over the sum of their weights. Every rank computes that sum for all
/// ranks from the labels, so it costs no message, and gradients only need to be added.
class ClassWeights {
 public:
  /// `weights`: by class. Keeps a reference to `images`.
  ClassWeights(std::vector<float> weights, const loader::BatchSource& images);

  /// Returns the weights on a device, [classes] f32.
  at::Tensor by_class(at::Device device) const;
  /// Looks up the weights of an epoch's samples, in the order of the partition's ranks.
  void begin_epoch(const BatchPartition& partition, std::int64_t seed, std::int64_t epoch);
  /// Returns the factor of the class weights in a step: the number of its samples over the sum of
  /// their weights, or 0 if all of them are 0. The loss is then a mean over the samples, as without
  /// weights. `batches`: the shards of all ranks, by batch.
  double factor(std::span<const std::vector<data::Range>> batches) const;

 private:
  /// The samples of an epoch, by their positions.
  struct RankOrder {
    std::vector<float> weights;  // of the samples' labels
    std::vector<float> shares;   // of these labels in the samples; empty if samples are not mixed
  };

  const RankOrder& order_of(std::size_t shard) const {
    return orders_[orders_.size() == 1 ? 0 : shard];
  }
  double sum_of(const std::vector<data::Range>& shards, std::size_t shard) const;
  float partner_of(const std::vector<data::Range>& shards, std::size_t shard,
                   std::size_t number) const;

  std::vector<float> weights_;  // by class
  const loader::BatchSource& images_;
  std::vector<RankOrder> orders_;  // one, or one per rank
};

}  // namespace mnist_train::train
