#include "train/class_weights.h"

#include <ATen/ops/tensor.h>

#include <utility>

#include "accelerator/device.h"

namespace mnist_train::train {

ClassWeights::ClassWeights(std::vector<float> weights, const loader::BatchSource& images)
    : weights_(std::move(weights)), images_(images) {}

at::Tensor ClassWeights::by_class(at::Device device) const {
  return accelerator::to_device(at::tensor(weights_), device);
}

void ClassWeights::begin_epoch(const BatchPartition& partition, std::int64_t seed,
                               std::int64_t epoch) {
  const loader::Augmenter* augmenter = images_.augmenter();
  orders_.clear();
  for (int rank = 0; rank < partition.orders(); ++rank) {
    const std::vector<std::int64_t> samples =
        partition.order_of(rank, images_.count(), seed, epoch);
    RankOrder& order = orders_.emplace_back();
    order.weights.reserve(samples.size());
    for (const std::int64_t sample : samples) {
      const auto label = images_.images().labels[static_cast<std::size_t>(sample)];
      order.weights.push_back(weights_[label]);
    }
    if (augmenter != nullptr) order.shares = augmenter->label_shares(samples, epoch);
  }
}

double ClassWeights::factor(std::span<const std::vector<data::Range>> batches) const {
  std::int64_t samples = 0;
  double sum = 0;
  for (const std::vector<data::Range>& shards : batches) {
    for (std::size_t shard = 0; shard < shards.size(); ++shard) {
      samples += shards[shard].size();
      sum += sum_of(shards, shard);
    }
  }
  return sum > 0 ? static_cast<double>(samples) / sum : 0;
}

/// Returns the sum of the weights of a shard's samples, each mixed as its labels are.
double ClassWeights::sum_of(const std::vector<data::Range>& shards, std::size_t shard) const {
  const RankOrder& order = order_of(shard);
  const auto begin = static_cast<std::size_t>(shards[shard].begin);
  const auto count = static_cast<std::size_t>(shards[shard].size());
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double own = order.weights[begin + i];
    const double share = order.shares.empty() ? 1 : order.shares[begin + i];
    sum += share < 1 ? share * own + (1 - share) * partner_of(shards, shard, i) : own;
  }
  return sum;
}

/// Returns the weight of the label that sample `number` of a shard is mixed with, see Augmenter.
float ClassWeights::partner_of(const std::vector<data::Range>& shards, std::size_t shard,
                               std::size_t number) const {
  const RankOrder& order = order_of(shard);
  const std::size_t own = static_cast<std::size_t>(shards[shard].begin) + number;
  if (!images_.augmenter()->mixes_shards()) return order.weights[(own + 1) % order.weights.size()];
  const std::size_t next = (shard + 1) % shards.size();
  const data::Range& partners = shards[next];
  if (number >= static_cast<std::size_t>(partners.size())) return order.weights[own];
  return order_of(next).weights[static_cast<std::size_t>(partners.begin) + number];
}

}  // namespace mnist_train::train
