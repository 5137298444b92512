#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "data/sampler.h"
#include "loader/batch_source.h"
#include "settings/data_options.h"

namespace mnist_train::train {

struct PartitionOptions {
  settings::Split split = settings::Split::kEven;
  std::vector<std::int64_t> samples_per_rank{};  // set only with train_per_process
  std::optional<std::int64_t> shards{};          // per batch, for any number of ranks
};

/// Splits each global batch into shards: one per rank, or a fixed number. Every rank knows the
/// positions of all shards. This class splits evenly: sizes differ by at most one.
class BatchPartition {
 public:
  /// Rank i computes shards `begins[i]` to `begins[i + 1]` - 1.
  BatchPartition(std::vector<std::int64_t> begins, int rank)
      : begins_(std::move(begins)), rank_(static_cast<std::size_t>(rank)) {}
  virtual ~BatchPartition() = default;

  std::int64_t shards() const { return begins_.back(); }
  /// Returns the indices of this rank's shards; there is at least one.
  data::Range local_shards() const { return {begins_[rank_], begins_[rank_ + 1]}; }
  /// Returns the first shard of each rank, followed by the total number of shards.
  const std::vector<std::int64_t>& begins() const { return begins_; }

  /// Returns the order of a rank's samples in an epoch (counted from 0): of all `count` samples,
  /// and the same for all ranks, unless each has its own training set.
  virtual std::vector<std::int64_t> order_of(int /*rank*/, std::int64_t count, std::int64_t seed,
                                             std::int64_t epoch) const {
    return data::epoch_permutation(count, seed, epoch);
  }
  /// Returns the number of distinct orders: 1 or the number of ranks.
  virtual int orders() const { return 1; }
  /// Returns shard `number` of the batch at positions `global`, as positions in the sample order of
  /// the rank that computes it. Shard sizes add up to the size of `global`; unless ranks have their
  /// own training sets, the shards are consecutive parts of `global`.
  virtual data::Range shard(data::Range global, std::int64_t number) const {
    return data::shard(global, number, shards());
  }
  /// Returns the number of scalars that the partition adds to the step's statistics.
  virtual std::int64_t statistics() const { return 0; }
  /// Starts timing this rank's own work on a step.
  virtual void begin_work() {}
  /// Stops timing before the gradients are averaged, and writes the time to `statistics` [n] f32,
  /// which is then summed over the ranks. Waits for the GPU.
  virtual void end_work(const at::Tensor& /*statistics*/) {}
  /// Receives the summed statistics of a step in which rank i processed `samples[i]` samples. All
  /// ranks receive the same numbers and make the same decision. Waits for the GPU.
  virtual void update(const at::Tensor& /*statistics*/,
                      const std::vector<std::int64_t>& /*samples*/) {}

 protected:
  std::vector<std::int64_t> begins_;
  std::size_t rank_;
};

/// Creates the partition that the options request. `even`: sizes differ by at most one.
/// `throughput`: sizes are proportional to each rank's samples per second, measured over recent
/// steps; every run, even a resumed one, starts with an even split. If each rank has its own
/// training set, its shard comes from that set. `shards`: a fixed number of even shards. Throws
/// Error(kConfig) if there are more ranks than shards.
std::unique_ptr<BatchPartition> make_batch_partition(const PartitionOptions& options,
                                                     const comm::Communicator& communicator,
                                                     at::Device device);

/// Class weights of the loss, as in torch.nn.CrossEntropyLoss: the loss of a step is the sum of its
/// samples' weighted losses divided by the sum of their weights. Every rank computes this sum for
/// all ranks from the labels, without communication, so gradients only need to be added.
class ClassWeights {
 public:
  /// `weights`: per class. Keeps a reference to `images`.
  ClassWeights(std::vector<float> weights, const loader::BatchSource& images)
      : weights_(std::move(weights)), images_(images) {}

  /// Looks up the weights of an epoch's samples, in the partition's sample orders.
  void begin_epoch(const BatchPartition& partition, std::int64_t seed, std::int64_t epoch);
  /// Returns the factor for the class weights in a step: its number of samples divided by the sum
  /// of their weights, or 0 if all weights are 0. With this factor the loss is a mean over the
  /// samples, as it is without weights. `batches`: the shards of all ranks, per batch.
  double factor(std::span<const std::vector<data::Range>> batches) const;

 private:
  /// Values of an epoch's samples, in one rank's order.
  struct RankOrder {
    std::vector<float> weights;  // of the labels
    std::vector<float> shares;   // Augmenter::label_shares; empty without mixing
  };

  const RankOrder& order_of(std::size_t shard) const {
    return orders_[orders_.size() == 1 ? 0 : shard];
  }
  double shard_weight(const std::vector<data::Range>& shards, std::size_t shard) const;
  float partner_weight(const std::vector<data::Range>& shards, std::size_t shard,
                       std::size_t number) const;

  std::vector<float> weights_;  // per class
  const loader::BatchSource& images_;
  std::vector<RankOrder> orders_;  // one, or one per rank
};

}  // namespace mnist_train::train
