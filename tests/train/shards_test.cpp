// Tests that training with a fixed number of shards is bit-identical on any number of ranks.

#include "support/catch.h"
#include "support/ranks.h"
#include "support/trainer_rig.h"
#include "train/trainer.h"

namespace mnist_train::train {
namespace {

using settings::AveragingStrategy;
using settings::TrainOptions;
using namespace testing;

struct ShardOutcome {
  at::Tensor weights;
  at::Tensor buffers;
  StepSums sums;  // of the last epoch's steps so far

  bool operator==(const ShardOutcome& other) const {
    return weights.equal(other.weights) && buffers.equal(other.buffers) &&
           sums.loss == other.sums.loss && sums.correct == other.sums.correct &&
           sums.samples == other.sums.samples;
  }
};

/// Trains for 8 steps, into the third epoch. Returns the outcome on each rank.
std::vector<ShardOutcome> train_on(int ranks, const TrainOptions& options,
                                   const settings::DataOptions& data = {}) {
  return results_of_ranks(ranks, [&](const comm::Communicator& communicator) {
    TrainerRig rig(options, communicator, tiny_model(1, /*with_batch_norm=*/true), {.count = 50},
                   at::kCPU, data, {}, nullptr,
                   options.ema ? tiny_model(1, /*with_batch_norm=*/true) : nullptr);
    rig.run_to(8);
    std::vector<at::Tensor> buffers;
    for (const at::Tensor& buffer : rig.trainer.evaluated_model().buffers()) {
      buffers.push_back(buffer.to(at::kFloat).flatten().clone());
    }
    return ShardOutcome{rig.weights(), at::cat(buffers), rig.trainer.progress().epoch_sums};
  });
}

TrainOptions with_shards(std::int64_t shards) {
  TrainOptions options = small_run();
  options.shards = shards;
  return options;
}

void check_same_on_any_ranks(const TrainOptions& options, const settings::DataOptions& data = {}) {
  const ShardOutcome expected = train_on(1, options, data).front();
  for (int ranks = 2; ranks <= *options.shards; ++ranks) {
    for (const AveragingStrategy strategy :
         {AveragingStrategy::kSharedMemory, AveragingStrategy::kFlat}) {
      TrainOptions averaged = options;
      averaged.gradient_averaging.strategy = strategy;
      for (const ShardOutcome& outcome : train_on(ranks, averaged, data)) {
        INFO(ranks << " ranks, strategy " << static_cast<int>(strategy));
        CHECK(outcome == expected);
      }
    }
  }
}

TEST_CASE("with shards, training is bit-identical on every rank and any number of ranks") {
  check_same_on_any_ranks(with_shards(4));
  check_same_on_any_ranks(with_shards(5));  // not a power of two
}

TEST_CASE("batches with fewer samples than shards are bit-identical on any number of ranks") {
  TrainOptions options = with_shards(3);
  options.batch_size = 7;  // the last batch of an epoch has one sample
  check_same_on_any_ranks(options);
  options.batch_size = 2;
  check_same_on_any_ranks(options);
}

TEST_CASE("clipping, EMA and accumulation are bit-identical on any number of ranks") {
  TrainOptions options = with_shards(3);
  options.batch_size = 9;
  options.max_gradient_norm = 0.5;
  options.label_smoothing = 0.1;
  options.ema = settings::EmaOptions{0.9};
  options.optimizer = settings::OptimizerName::kAdamW;
  options.weight_decay = 0.01;
  check_same_on_any_ranks(options);
  options.gradient_accumulation_steps = 3;
  check_same_on_any_ranks(options);
}

TEST_CASE("mixup pairs samples by shard, whatever the number of ranks") {
  for (const auto scope : {settings::MixupScope::kLocal, settings::MixupScope::kGlobal}) {
    settings::DataOptions data;
    data.augment.emplace_back(settings::MixupOptions{0.4, std::nullopt, scope});
    INFO("scope " << static_cast<int>(scope));
    check_same_on_any_ranks(with_shards(3), data);
    const ShardOutcome mixed = train_on(3, with_shards(3), data).front();
    // With as many ranks as shards, ranks without fixed shards pair the same samples.
    CHECK(mixed.weights.equal(train_on(3, small_run(), data).front().weights));
    CHECK_FALSE(mixed == train_on(3, with_shards(3)).front());
  }
}

TEST_CASE("a different number of shards gives similar, but not bit-identical, weights") {
  const ShardOutcome three = train_on(1, with_shards(3)).front();
  const ShardOutcome four = train_on(1, with_shards(4)).front();
  CHECK_FALSE(three.weights.equal(four.weights));
  CHECK(at::allclose(three.weights, four.weights, 0.1, 0.05));
}

TEST_CASE("running statistics are updated once per step, with the mean of the shards' statistics") {
  // After one step, the statistics do not depend on updated weights. Batch norm's momentum is 0.1.
  TrainOptions options = with_shards(2);
  options.batch_size = 50;
  options.max_steps = 1;
  TrainOptions whole = options;
  whole.shards = 1;
  TrainerRig halves(options, one_rank(), tiny_model(1, true));
  TrainerRig one(whole, one_rank(), tiny_model(1, true));
  halves.run_to(1);
  one.run_to(1);
  const auto by_halves = halves.trainer.model().named_buffers();
  const auto by_one = one.trainer.model().named_buffers();
  CHECK(at::allclose(by_halves["norm.running_mean"], by_one["norm.running_mean"], 1e-5, 1e-6));
  CHECK(at::allclose(by_halves["norm.running_var"], by_one["norm.running_var"], 0.02, 0));
  CHECK(by_halves["norm.num_batches_tracked"].item<std::int64_t>() == 1);
}

}  // namespace
}  // namespace mnist_train::train
