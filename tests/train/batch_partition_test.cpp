#include "train/batch_partition.h"

#include <numeric>

#include "base/system.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/trainer_rig.h"

namespace mnist_train::train {
namespace {

using settings::MixupOptions;
using settings::MixupScope;
using settings::Split;
using namespace testing;

/// A model whose forward pass sleeps for a fixed time per training sample.
class SlowModel : public TinyModel {
 public:
  explicit SlowModel(std::chrono::microseconds a_sample)
      : TinyModel(/*with_batch_norm=*/false), a_sample_(a_sample) {}

  at::Tensor forward(const at::Tensor& images) override {
    if (is_training()) std::this_thread::sleep_for(a_sample_ * images.size(0));
    return TinyModel::forward(images);
  }

 private:
  std::chrono::microseconds a_sample_;
};

std::vector<std::int64_t> shard_sizes(const BatchPartition& partition, data::Range global,
                                      int ranks = 2) {
  std::vector<std::int64_t> sizes;
  for (int rank = 0; rank < ranks; ++rank) sizes.push_back(partition.shard(global, rank).size());
  return sizes;
}

/// Returns a batch's shard sizes after `steps` steps of ranks with `speeds` in samples per second.
std::vector<std::int64_t> learned(const std::vector<double>& speeds, double overhead_s,
                                  std::int64_t batch, int steps) {
  return results_of_ranks(static_cast<int>(speeds.size()), [&](comm::Communicator& communicator) {
    const auto split = make_batch_partition({Split::kThroughput}, communicator, at::kCPU);
    const int ranks = communicator.world_size();
    for (int step = 0; step < steps; ++step) {
      std::vector<std::int64_t> samples;
      at::Tensor statistics = at::zeros({split->statistics()});
      for (int rank = 0; rank < ranks; ++rank) {
        samples.push_back(split->shard({0, batch}, rank).size());
        const auto at = static_cast<std::size_t>(rank);
        statistics[rank] = overhead_s + static_cast<double>(samples[at]) / speeds[at];
      }
      split->update(statistics, samples);
    }
    return split->shard({0, batch}, communicator.rank()).size();
  });
}

TEST_CASE("shards are even until the ranks' speeds are known, then proportional to them") {
  using Sizes = std::vector<std::int64_t>;
  CHECK(learned({1000, 500}, 0, 120, 3) == Sizes{60, 60});
  CHECK(learned({1000, 500}, 0, 120, 10) == Sizes{80, 40});
  CHECK(learned({1000, 500, 1000}, 0, 100, 100) == Sizes{40, 20, 40});
  CHECK(learned({1000, 990}, 0, 120, 100) == Sizes{60, 60});  // too similar to be worth adapting to
  // With the same fixed cost, 86 and 34 samples take equally long: 86 / 1000 s and 34 / 400 s.
  const Sizes with_overhead = learned({1000, 400}, 0.02, 120, 400);
  CHECK(with_overhead[0] + with_overhead[1] == 120);
  CHECK(std::abs(with_overhead[0] - 86) <= 4);
}

TEST_CASE("a very slow rank keeps one sample, so that its speed can be measured") {
  CHECK(learned({1e6, 1}, 0, 50, 200) == std::vector<std::int64_t>{49, 1});
}

TEST_CASE("fixed shards do not depend on the number of ranks; each rank gets consecutive ones") {
  const std::vector<std::vector<data::Range>> own{
      {{0, 4}}, {{0, 2}, {2, 4}}, {{0, 2}, {2, 3}, {3, 4}}};
  for (std::size_t ranks = 1; ranks <= own.size(); ++ranks) {
    const auto dealt = results_of_ranks(static_cast<int>(ranks), [](comm::Communicator&
                                                                        communicator) {
      const auto partition = make_batch_partition({Split::kEven, {}, 4}, communicator, at::kCPU);
      std::int64_t ends = partition->statistics();  // must be 0
      for (std::int64_t number = 0; number < partition->shards(); ++number) {
        ends = 100 * ends + partition->shard({10, 20}, number).end;
      }
      return std::pair(partition->local_shards(), ends);
    });
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      CHECK(dealt[rank].first.begin == own[ranks - 1][rank].begin);
      CHECK(dealt[rank].first.end == own[ranks - 1][rank].end);
      CHECK(dealt[rank].second == 13161820);  // shards of 3, 3, 2 and 2 samples
    }
  }
}

TEST_CASE("every sample of every rank's set is used once per epoch, at any batch size") {
  const auto sizes = GENERATE(values<std::vector<std::int64_t>>({{7}, {5, 5}, {1, 9, 4}}));
  const auto batch_size = GENERATE(std::int64_t{1}, 3, 4, 20);
  const auto sets = make_batch_partition({.samples_per_rank = sizes}, {}, at::kCPU);
  const auto total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<std::int64_t> begin(sizes.size());
  for (std::int64_t at = 0; at < total; at += batch_size) {
    const data::Range global{at, std::min(at + batch_size, total)};
    std::int64_t together = 0;
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
      const data::Range share = sets->shard(global, static_cast<int>(rank));
      CHECK(share.begin == begin[rank]);
      begin[rank] = share.end;
      together += share.size();
    }
    CHECK(together == global.size());
  }
  CHECK(begin == sizes);
}

TEST_CASE("batches are split evenly between ranks whose sets have samples left") {
  const auto sets = make_batch_partition({.samples_per_rank = {2, 6}}, {}, at::kCPU);
  const auto shares = [&sets](data::Range global) {
    return std::vector{sets->shard(global, 0).size(), sets->shard(global, 1).size()};
  };
  CHECK(shares({0, 3}) == std::vector<std::int64_t>{2, 1});
  CHECK(shares({0, 4}) == std::vector<std::int64_t>{2, 2});
  CHECK(shares({4, 8}) == std::vector<std::int64_t>{0, 4});
}

TEST_CASE("each rank permutes its own samples, differently in each epoch and on each rank") {
  const auto made = [] {
    return make_batch_partition({.samples_per_rank = {50, 50}}, {}, at::kCPU);
  };
  const auto sets = made();
  const auto first = sets->order_of(0, 100, 1, 0);
  const auto second = sets->order_of(1, 100, 1, 0);
  for (const auto& [order, begin] : {std::pair(first, 0), std::pair(second, 50)}) {
    auto sorted = order;
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::int64_t> expected(50);
    std::iota(expected.begin(), expected.end(), begin);
    CHECK(sorted == expected);
  }
  std::vector<std::int64_t> moved = first;
  for (std::int64_t& sample : moved) sample += 50;
  CHECK(moved != second);
  CHECK(first != sets->order_of(0, 100, 1, 1));
  CHECK(first != sets->order_of(0, 100, 2, 0));
  CHECK(first == made()->order_of(0, 100, 1, 0));
}

TEST_CASE("with ranks of unequal speed, a throughput split is faster and trains the same weights") {
  settings::TrainOptions options = small_run();
  options.deterministic = false;
  options.epochs = 1;
  options.batch_size = 30;
  options.learning_rate = 0.01;
  const SmallImages wanted{.count = 900};
  TrainerRig alone(options, one_rank(), nullptr, wanted);
  alone.run_to(1000);
  struct Outcome {
    at::Tensor weights;
    std::vector<std::int64_t> sizes;
    double seconds = 0;
  };
  const auto train = [&](Split split) {
    settings::DataOptions data;
    data.split = split;
    std::vector<std::shared_ptr<SlowModel>> models;  // made here because threads share a generator
    for (const std::int64_t a_sample_us : {400, 800}) {
      torch::manual_seed(static_cast<std::uint64_t>(options.seed));
      models.push_back(std::make_shared<SlowModel>(std::chrono::microseconds(a_sample_us)));
    }
    return results_of_ranks(2, [&](comm::Communicator& communicator) {
      const auto& model = models[static_cast<std::size_t>(communicator.rank())];
      TrainerRig rig(options, communicator, model, wanted, at::kCPU, data);
      const double begin_s = monotonic_seconds();
      rig.run_to(1000);
      return Outcome{rig.weights(), shard_sizes(rig.trainer.partition(), {0, 1000}),
                     monotonic_seconds() - begin_s};
    });
  };
  const auto even = train(Split::kEven);
  const auto measured = train(Split::kThroughput);
  for (const Outcome& outcome : measured) {
    CHECK(at::allclose(outcome.weights, alone.weights(), 1e-4, 1e-6));
    CHECK(outcome.weights.equal(measured[0].weights));
    CHECK(outcome.sizes == measured[0].sizes);
    CHECK(outcome.sizes[0] > 580);  // ideally two thirds
    CHECK(outcome.sizes[0] < 750);
    CHECK(outcome.seconds < 0.95 * even[0].seconds);  // ideally 8/12, except for the first steps
  }
}

constexpr std::int64_t kSamples = 50;
const std::vector<float> kWeights{0.5F, 3, 1, 0.25F, 2, 1, 0, 8, 1, 0.125F};

/// The factor of each step over two epochs, computed and expected; a step has two batches.
struct Factors {
  std::vector<double> computed;
  std::vector<double> expected;
};

/// Gathers batches on three ranks, as in a run; returns rank 0's factors.
Factors factors_of(const PartitionOptions& options, const settings::AugmentList& list) {
  Factors factors;
  on_connected_ranks(3, [&](comm::Communicator& communicator) {
    const auto from_next = [&](const at::Tensor& mine, std::int64_t count) {
      return communicator.receive_from_next(mine, count);
    };
    const auto partition = make_batch_partition(options, communicator, at::kCPU);
    std::shared_ptr<loader::Augmenter> augmenter;
    if (!list.empty()) {
      const auto* mixup = settings::find<MixupOptions>(list);
      const bool across = mixup != nullptr && mixup->scope == MixupScope::kGlobal;
      augmenter = std::make_shared<loader::Augmenter>(
          list, settings::ImageSize{16, 16}, 5, at::kCPU,
          across && !options.shards ? loader::ReceiveFromNext(from_next)
                                    : loader::ReceiveFromNext(),
          across && options.shards.has_value());
    }
    const auto images = loader::make_batch_source(small_images({.count = kSamples}), {}, at::kCPU,
                                                  at::kFloat, augmenter);
    ClassWeights weights(kWeights, *images);
    const at::Tensor by_class = at::tensor(kWeights);
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      images->set_order(partition->order_of(communicator.rank(), kSamples, /*seed=*/5, epoch),
                        epoch);
      weights.begin_epoch(*partition, /*seed=*/5, epoch);
      for (std::int64_t begin = 0; begin < kSamples; begin += 14) {
        std::vector<std::vector<data::Range>> batches;
        double sum = 0;
        const std::int64_t end = std::min(begin + 14, kSamples);
        for (std::int64_t first = begin; first < end; first += 7) {
          auto& shards = batches.emplace_back();
          for (std::int64_t i = 0; i < partition->shards(); ++i) {
            shards.push_back(partition->shard({first, std::min(first + 7, end)}, i));
          }
          const data::Range local = partition->local_shards();
          for (std::int64_t i = local.begin; i < local.end; ++i) {
            const auto shard = static_cast<std::size_t>(i);
            const loader::Batch batch = images->gather(
                {.range = shards[shard], .next = shards[(shard + 1) % shards.size()]});
            at::Tensor each = by_class.index_select(0, batch.labels);
            if (batch.is_mixed()) {
              const at::Tensor other = by_class.index_select(0, batch.other_labels);
              each = each * batch.weights + other * (1 - batch.weights);
            }
            sum += each.sum().item<double>();
          }
        }
        sum = communicator.sum_over_ranks(sum);
        if (communicator.rank() != 0) continue;
        factors.computed.push_back(weights.factor(batches));
        factors.expected.push_back(static_cast<double>(end - begin) / sum);
      }
    }
  });
  return factors;
}

TEST_CASE("each rank sums the class weights over all ranks' samples, even with mixup") {
  const settings::AugmentationOptions flip = settings::HorizontalFlipOptions{};
  const std::vector<settings::AugmentList> lists{
      {},
      {flip},
      {flip, MixupOptions{0.4, std::nullopt, MixupScope::kLocal}},
      {MixupOptions{std::nullopt, 0.3, MixupScope::kLocal}},
      {flip, MixupOptions{0.4, std::nullopt, MixupScope::kGlobal}}};
  const PartitionOptions even;
  const PartitionOptions sharded{.shards = 4};
  const PartitionOptions own_sets{.samples_per_rank = {20, 3, 27}};
  for (const PartitionOptions& options : {even, sharded, own_sets}) {
    for (std::size_t list = 0; list < lists.size(); ++list) {
      CAPTURE(options.shards, options.samples_per_rank, list);
      const auto [computed, expected] = factors_of(options, lists[list]);
      REQUIRE(computed.size() == 8);
      for (std::size_t i = 0; i < computed.size(); ++i) {
        CAPTURE(i);
        CHECK(computed[i] == Approx(expected[i]).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("a step in which all class weights are 0 has the factor 0") {
  const auto images = loader::make_batch_source(small_images({.count = kSamples}), {}, at::kCPU);
  ClassWeights weights(std::vector<float>(10, 0.0F), *images);
  const BatchPartition partition({0, 1}, 0);
  weights.begin_epoch(partition, 1, 0);
  const std::vector<std::vector<data::Range>> batches{{{0, 7}}};
  CHECK(weights.factor(batches) == 0);
  CHECK(weights.factor({}) == 0);
}

}  // namespace
}  // namespace mnist_train::train
