#include "support/catch.h"
#include "support/ranks.h"
#include "support/small_images.h"
#include "train/batch_partition.h"

namespace mnist_train::train {
namespace {

using settings::MixupOptions;
using settings::MixupScope;
using namespace testing;

constexpr std::int64_t kSamples = 50;
const std::vector<float> kWeights{0.5F, 3, 1, 0.25F, 2, 1, 0, 8, 1, 0.125F};

/// The factors of an epoch's steps of two batches, and the same from the labels that batches have.
struct Factors {
  std::vector<double> computed;
  std::vector<double> expected;
};

/// Gathers the batches as a run does, on three ranks; returns what rank 0 sees.
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
          across && !options.shards ? loader::FromNext(from_next) : loader::FromNext(),
          across && options.shards.has_value());
    }
    const auto images = loader::make_batch_source(testing::small_images({.count = kSamples}), {},
                                                  at::kCPU, at::kFloat, augmenter);
    ClassWeights weights(kWeights, *images);
    const at::Tensor by_class = at::tensor(kWeights);
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      images->set_order(partition->order(kSamples, /*seed=*/5, epoch), epoch);
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
          const data::Range own = partition->own_shards();
          for (std::int64_t i = own.begin; i < own.end; ++i) {
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

TEST_CASE("a rank alone knows the sum of the weights of all ranks' samples, mixed or not") {
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

TEST_CASE("steps without weight have the factor 0") {
  const auto images =
      loader::make_batch_source(testing::small_images({.count = kSamples}), {}, at::kCPU);
  ClassWeights weights(std::vector<float>(10, 0.0F), *images);
  const BatchPartition partition({0, 1}, 0);
  weights.begin_epoch(partition, 1, 0);
  const std::vector<std::vector<data::Range>> batches{{{0, 7}}};
  CHECK(weights.factor(batches) == 0);
  CHECK(weights.factor({}) == 0);
}

}  // namespace
}  // namespace mnist_train::train
