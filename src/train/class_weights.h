#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "data/sampler.h"
#include "loader/batch_source.h"
#include "train/batch_partition.h"

namespace mnist_train::train {

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
