#include "train/batch_partition.h"

#include <algorithm>
#include <numeric>

#include "accelerator/device.h"
#include "base/print.h"
#include "base/system.h"

namespace mnist_train::train {

namespace {

/// Returns the first shard of each rank, followed by the total number of shards.
std::vector<std::int64_t> divide(std::int64_t shards, int ranks) {
  std::vector<std::int64_t> begins;
  for (int rank = 0; rank < ranks; ++rank) {
    begins.push_back(data::shard({0, shards}, rank, ranks).begin);
  }
  begins.push_back(shards);
  return begins;
}

/// Orders samples when each process has its own training set (train_per_process). Every sample is
/// visited once per epoch, and every global batch draws evenly from the sets that have samples
/// left. The sets are concatenated, as in Dataset::train.
class PerRankPartition : public BatchPartition {
 public:
  /// `sizes`: the number of samples in each rank's set, none of them 0.
  PerRankPartition(std::vector<std::int64_t> sizes, std::vector<std::int64_t> begins, int rank)
      : BatchPartition(std::move(begins), rank),
        sizes_(std::move(sizes)),
        positions_(sizes_.size()) {
    const std::int64_t total = std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{0});
    for (std::size_t owner = 0, position = 0; position < static_cast<std::size_t>(total);
         owner = (owner + 1) % sizes_.size()) {
      if (std::ssize(positions_[owner]) == sizes_[owner]) continue;
      positions_[owner].push_back(static_cast<std::int64_t>(position++));
    }
  }

  /// Returns indices into the concatenated sets.
  std::vector<std::int64_t> order_of(int rank, std::int64_t /*count*/, std::int64_t seed,
                                     std::int64_t epoch) const override {
    // With a shared seed, sets of equal size would be visited in the same order, so the same
    // samples would always share a batch.
    constexpr std::uint64_t kSeedStride = 1'000'003;
    const std::int64_t count = sizes_[static_cast<std::size_t>(rank)];
    const auto own_seed =
        static_cast<std::uint64_t>(seed) + static_cast<std::uint64_t>(rank) * kSeedStride;
    auto order = data::epoch_permutation(count, static_cast<std::int64_t>(own_seed), epoch);
    const std::int64_t first =
        std::accumulate(sizes_.begin(), sizes_.begin() + rank, std::int64_t{0});
    for (std::int64_t& sample : order) sample += first;
    return order;
  }
  int orders() const override { return static_cast<int>(sizes_.size()); }
  data::Range shard(data::Range global, std::int64_t number) const override {
    const auto& owned = positions_[static_cast<std::size_t>(number)];
    const auto before = [&owned](std::int64_t position) {
      return std::lower_bound(owned.begin(), owned.end(), position) - owned.begin();
    };
    return {before(global.begin), before(global.end)};
  }

 private:
  std::vector<std::int64_t> sizes_;
  // Per rank: the positions of its samples in the global order, ascending.
  std::vector<std::vector<std::int64_t>> positions_;
};

class ThroughputPartition : public BatchPartition {
 public:
  ThroughputPartition(const comm::Communicator& communicator, at::Device device)
      : BatchPartition(divide(communicator.world_size(), communicator.world_size()),
                       communicator.rank()),
        ranks_(static_cast<std::size_t>(communicator.world_size())),
        device_(device),
        fractions_(ranks_, 1.0 / static_cast<double>(ranks_)),
        busy_s_(ranks_),
        samples_(ranks_) {}

  data::Range shard(data::Range global, std::int64_t number) const override {
    const std::vector<std::int64_t> sizes = data::apportion(global.size(), fractions_);
    const auto size = sizes.begin() + number;
    const std::int64_t begin = std::accumulate(sizes.begin(), size, global.begin);
    return {begin, begin + *size};
  }

  std::int64_t statistics() const override { return static_cast<std::int64_t>(ranks_); }

  void begin_work() override { work_begin_s_ = now_s(); }

  void end_work(const at::Tensor& statistics) override {
    statistics[static_cast<std::int64_t>(rank_)].fill_(now_s() - work_begin_s_);
  }

  void update(const at::Tensor& statistics, const std::vector<std::int64_t>& samples) override {
    if (++measured_ <= 0) return;  // the first step allocates memory and selects kernels
    const at::Tensor busy_s = accelerator::to_host(statistics).to(at::kDouble);
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      busy_s_[rank] += busy_s.const_data_ptr<double>()[rank];
      samples_[rank] += static_cast<double>(samples[rank]);
    }
    if (measured_ < (decided_ ? kWindow : kFirstWindow)) return;
    decide();
    measured_ = 0;
    std::fill(busy_s_.begin(), busy_s_.end(), 0);
    std::fill(samples_.begin(), samples_.end(), 0);
  }

 private:
  static constexpr int kFirstWindow = 4;  // steps
  static constexpr int kWindow = 16;
  // Kernel libraries redo their set-up for each new shard size; a smaller gain would not repay it.
  static constexpr double kMinImbalance = 0.05;

  double now_s() const {
    accelerator::synchronize(device_);
    return monotonic_seconds();
  }

  void decide() {
    const auto [fastest_s, slowest_s] = std::ranges::minmax(busy_s_);
    if (fastest_s <= 0 || std::ranges::min(samples_) <= 0) return;  // a rank had no samples
    const double mean_s =
        std::accumulate(busy_s_.begin(), busy_s_.end(), 0.0) / static_cast<double>(ranks_);
    if (slowest_s < (1 + kMinImbalance) * mean_s) return;
    std::vector<double> speeds(ranks_);
    for (std::size_t rank = 0; rank < ranks_; ++rank) speeds[rank] = samples_[rank] / busy_s_[rank];
    const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    // From the second decision on, apply only half of the change, because a window may be noisy.
    const double damping = decided_ ? 0.5 : 1;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      fractions_[rank] += damping * (speeds[rank] / sum - fractions_[rank]);
    }
    decided_ = true;
  }

  std::size_t ranks_;
  at::Device device_;
  std::vector<double> fractions_;
  double work_begin_s_ = 0;
  std::vector<double> busy_s_;   // per rank in this window
  std::vector<double> samples_;  // per rank in this window
  int measured_ = -1;            // steps in this window; -1: no step has run yet
  bool decided_ = false;
};

}  // namespace

std::unique_ptr<BatchPartition> make_batch_partition(const PartitionOptions& options,
                                                     const comm::Communicator& communicator,
                                                     at::Device device) {
  const int ranks = communicator.world_size();
  const std::vector<std::int64_t> begins = divide(options.shards.value_or(ranks), ranks);
  if (begins.back() < ranks) {
    refuse(
        "deterministic.shards divides each batch into {}, but there are {} processes: start at "
        "most {}",
        counted(begins.back(), "shard"), ranks, begins.back());
  }
  if (!options.samples_per_rank.empty()) {
    return std::make_unique<PerRankPartition>(options.samples_per_rank, begins,
                                              communicator.rank());
  }
  if (options.split == settings::Split::kThroughput && !communicator.alone()) {
    return std::make_unique<ThroughputPartition>(communicator, device);
  }
  return std::make_unique<BatchPartition>(begins, communicator.rank());
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
      sum += shard_weight(shards, shard);
    }
  }
  return sum > 0 ? static_cast<double>(samples) / sum : 0;
}

/// Returns the sum of a shard's sample weights, each mixed like the sample's labels.
double ClassWeights::shard_weight(const std::vector<data::Range>& shards, std::size_t shard) const {
  const RankOrder& order = order_of(shard);
  const auto begin = static_cast<std::size_t>(shards[shard].begin);
  const auto count = static_cast<std::size_t>(shards[shard].size());
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double weight = order.weights[begin + i];
    const double share = order.shares.empty() ? 1 : order.shares[begin + i];
    sum += share < 1 ? share * weight + (1 - share) * partner_weight(shards, shard, i) : weight;
  }
  return sum;
}

/// Returns the weight of the label mixed into sample `number` of a shard (see Augmenter).
float ClassWeights::partner_weight(const std::vector<data::Range>& shards, std::size_t shard,
                                   std::size_t number) const {
  const RankOrder& order = order_of(shard);
  const std::size_t i = static_cast<std::size_t>(shards[shard].begin) + number;
  if (!images_.augmenter()->mixes_shards()) return order.weights[(i + 1) % order.weights.size()];
  const std::size_t next = (shard + 1) % shards.size();
  const data::Range& partners = shards[next];
  if (number >= static_cast<std::size_t>(partners.size())) return order.weights[i];
  return order_of(next).weights[static_cast<std::size_t>(partners.begin) + number];
}

}  // namespace mnist_train::train
