#include "train/batch_partition.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/system.h"
#include "data/per_rank_sampler.h"

namespace mnist_train::train {

namespace {

class EvenPartition : public BatchPartition {
 public:
  explicit EvenPartition(int ranks) : ranks_(ranks) {}

  data::Range shard(data::Range global, int rank) const override {
    return data::shard(global, rank, ranks_);
  }
  std::vector<double> weights() const override {
    return std::vector<double>(static_cast<std::size_t>(ranks_), 1.0 / ranks_);
  }

 private:
  int ranks_;
};

class PerRankPartition : public BatchPartition {
 public:
  PerRankPartition(std::vector<std::int64_t> sizes, int rank)
      : sets_(std::move(sizes)), rank_(rank) {}

  std::vector<std::int64_t> order(std::int64_t /*count*/, std::int64_t seed,
                                  std::int64_t epoch) const override {
    return sets_.order(rank_, seed, epoch);
  }
  data::Range shard(data::Range global, int rank) const override {
    return sets_.shard(global, rank);
  }
  std::vector<double> weights() const override {
    const std::vector<std::int64_t>& sizes = sets_.sizes();
    const auto sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    std::vector<double> weights;
    weights.reserve(sizes.size());
    for (const std::int64_t size : sizes) {
      weights.push_back(static_cast<double>(size) / static_cast<double>(sum));
    }
    return weights;
  }

 private:
  data::PerRankSampler sets_;
  int rank_;
};

class ThroughputPartition : public BatchPartition {
 public:
  ThroughputPartition(const comm::Communicator& communicator, at::Device device)
      : rank_(communicator.rank()),
        ranks_(static_cast<std::size_t>(communicator.world_size())),
        device_(device),
        weights_(ranks_, 1.0 / static_cast<double>(ranks_)),
        busy_s_(ranks_),
        samples_(ranks_) {}

  data::Range shard(data::Range global, int rank) const override {
    const std::vector<std::int64_t> sizes = data::apportion(global.size(), weights_);
    const auto mine = sizes.begin() + rank;
    const std::int64_t begin = std::accumulate(sizes.begin(), mine, global.begin);
    return {begin, begin + *mine};
  }

  std::vector<double> weights() const override { return weights_; }

  std::int64_t riders() const override { return static_cast<std::int64_t>(ranks_); }

  double clock() const override {
    if (!device_.is_cpu()) {
      c10::impl::getDeviceGuardImpl(device_.type())->synchronizeDevice(device_.index());
    }
    return monotonic_seconds();
  }

  void record(double busy_s, const at::Tensor& riders) const override {
    riders[rank_].fill_(busy_s);
  }

  void update(const at::Tensor& riders, const std::vector<std::int64_t>& samples) override {
    if (++steps_ <= kWarmUpSteps) return;  // they allocate, and choose kernels
    const at::Tensor busy_s = riders.to(at::kCPU, at::kDouble);
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      busy_s_[rank] += busy_s.const_data_ptr<double>()[rank];
      samples_[rank] += static_cast<double>(samples[rank]);
    }
    if (++measured_ < (decided_ ? kWindow : kFirstWindow)) return;
    decide();
    measured_ = 0;
    std::fill(busy_s_.begin(), busy_s_.end(), 0);
    std::fill(samples_.begin(), samples_.end(), 0);
  }

 private:
  static constexpr int kWarmUpSteps = 1;
  static constexpr int kFirstWindow = 4;  // steps
  static constexpr int kWindow = 16;
  // Every new size of a share makes the kernels' libraries prepare anew, so small gains cost more
  // than they bring.
  static constexpr double kWorthIt = 0.05;

  void decide() {
    const bool measurable =
        std::all_of(busy_s_.begin(), busy_s_.end(), [](double s) { return s > 0; }) &&
        std::all_of(samples_.begin(), samples_.end(), [](double n) { return n > 0; });
    if (!measurable) return;  // batches with fewer samples than ranks
    const double slowest_s = *std::max_element(busy_s_.begin(), busy_s_.end());
    const double mean_s =
        std::accumulate(busy_s_.begin(), busy_s_.end(), 0.0) / static_cast<double>(ranks_);
    if (slowest_s < (1 + kWorthIt) * mean_s) return;
    std::vector<double> speeds(ranks_);
    for (std::size_t rank = 0; rank < ranks_; ++rank) speeds[rank] = samples_[rank] / busy_s_[rank];
    const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.0);
    // Half way from the second time on: a disturbance of one window is not the machine.
    const double part = decided_ ? 0.5 : 1;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      weights_[rank] += part * (speeds[rank] / sum - weights_[rank]);
    }
    decided_ = true;
  }

  int rank_;
  std::size_t ranks_;
  at::Device device_;
  std::vector<double> weights_;
  std::vector<double> busy_s_;   // by rank, of this window
  std::vector<double> samples_;  // as well
  int steps_ = 0;
  int measured_ = 0;
  bool decided_ = false;
};

}  // namespace

std::vector<std::int64_t> BatchPartition::order(std::int64_t count, std::int64_t seed,
                                                std::int64_t epoch) const {
  return data::epoch_permutation(count, seed, epoch);
}

std::unique_ptr<BatchPartition> make_batch_partition(const PartitionOptions& sharing,
                                                     const comm::Communicator& communicator,
                                                     at::Device device) {
  if (!sharing.samples_per_rank.empty()) {
    return std::make_unique<PerRankPartition>(sharing.samples_per_rank, communicator.rank());
  }
  if (sharing.split == settings::Split::kThroughput && !communicator.alone()) {
    return std::make_unique<ThroughputPartition>(communicator, device);
  }
  return std::make_unique<EvenPartition>(communicator.world_size());
}

}  // namespace mnist_train::train
