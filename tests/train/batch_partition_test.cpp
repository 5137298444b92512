#include "train/batch_partition.h"

#include <numeric>

#include "base/system.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/trainer_rig.h"

namespace mnist_train::train {
namespace {

using settings::Split;
using namespace testing;

/// A forward pass that takes a fixed time per sample, however busy the machine is.
class SlowModel : public testing::TinyModel {
 public:
  explicit SlowModel(std::chrono::microseconds a_sample)
      : testing::TinyModel(/*with_batch_norm=*/false), a_sample_(a_sample) {}

  at::Tensor forward(const at::Tensor& images) override {
    if (is_training()) std::this_thread::sleep_for(a_sample_ * images.size(0));
    return testing::TinyModel::forward(images);
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

/// Returns the sizes of a batch's shards after `steps` steps, if the ranks work at `speeds`, in
/// samples per second.
std::vector<std::int64_t> learned(const std::vector<double>& speeds, double overhead_s,
                                  std::int64_t batch, int steps) {
  std::vector<std::int64_t> sizes(speeds.size());
  on_connected_ranks(static_cast<int>(speeds.size()), [&](comm::Communicator& communicator) {
    const auto split = make_batch_partition({settings::Split::kThroughput}, communicator, at::kCPU);
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
    const int rank = communicator.rank();
    sizes[static_cast<std::size_t>(rank)] = split->shard({0, batch}, rank).size();
  });
  return sizes;
}

TEST_CASE("shares follow the speed of the ranks, and are even until it is known") {
  using Sizes = std::vector<std::int64_t>;
  CHECK(learned({1000, 500}, 0, 120, 3) == Sizes{60, 60});
  CHECK(learned({1000, 500}, 0, 120, 10) == Sizes{80, 40});
  CHECK(learned({1000, 500, 1000}, 0, 100, 100) == Sizes{40, 20, 40});
  CHECK(learned({1000, 990}, 0, 120, 100) == Sizes{60, 60});  // not worth it
  // With a fixed cost of 20 ms the times are equal at 20 ms + 86 / 1000 and 20 ms + 34 / 400.
  const Sizes with_overhead = learned({1000, 400}, 0.02, 120, 400);
  CHECK(with_overhead[0] + with_overhead[1] == 120);
  CHECK(std::abs(with_overhead[0] - 86) <= 4);
}

TEST_CASE("a rank whose speed is hopeless keeps a sample to measure it by") {
  CHECK(learned({1e6, 1}, 0, 50, 200) == std::vector<std::int64_t>{49, 1});
}

TEST_CASE("ranks cover a batch without gaps") {
  on_connected_ranks(3, [](comm::Communicator& communicator) {
    const auto split = make_batch_partition({settings::Split::kThroughput}, communicator, at::kCPU);
    at::Tensor statistics = at::zeros({3});
    statistics[0] = 1.0;
    statistics[1] = 3.0;
    statistics[2] = 0.5;
    for (int step = 0; step < 30; ++step) split->update(statistics, {10, 10, 10});
    for (const data::Range global : {data::Range{0, 100}, {7, 9}, {5, 5}, {40, 43}}) {
      std::int64_t next = global.begin;
      for (int rank = 0; rank < 3; ++rank) {
        const data::Range share = split->shard(global, rank);
        if (share.begin != next || share.end < share.begin) throw std::runtime_error("a gap");
        next = share.end;
      }
      if (next != global.end) throw std::runtime_error("not all of it");
    }
  });
}

TEST_CASE("a fixed number of shards is dealt to the ranks in runs, and does not depend on them") {
  const std::vector<std::vector<data::Range>> own{
      {{0, 4}}, {{0, 2}, {2, 4}}, {{0, 2}, {2, 3}, {3, 4}}};
  for (std::size_t ranks = 1; ranks <= own.size(); ++ranks) {
    std::vector<data::Range> dealt(ranks);
    std::vector<std::int64_t> ends(ranks);
    testing::on_connected_ranks(static_cast<int>(ranks), [&](comm::Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      const PartitionOptions options{settings::Split::kEven, {}, 4};
      const auto partition = make_batch_partition(options, communicator, at::kCPU);
      dealt[rank] = partition->own_shards();
      ends[rank] = partition->statistics();  // none
      for (std::int64_t number = 0; number < partition->shards(); ++number) {
        ends[rank] = 100 * ends[rank] + partition->shard({10, 20}, number).end;
      }
    });
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      CHECK(dealt[rank].begin == own[ranks - 1][rank].begin);
      CHECK(dealt[rank].end == own[ranks - 1][rank].end);
      CHECK(ends[rank] == 13161820);  // 3, 3, 2 and 2 samples
    }
  }
}

TEST_CASE("an unequal pair trains the weights of an even split, in the time that it should take") {
  settings::TrainOptions options = testing::small_run();
  options.deterministic = false;
  options.epochs = 1;
  options.batch_size = 30;
  options.learning_rate = 0.01;
  const testing::SmallImages wanted{.count = 900};
  TrainerRig alone(options, testing::one_rank(), nullptr, wanted);
  alone.run_to(1000);
  using std::chrono::microseconds;
  const std::vector<microseconds> a_sample{microseconds(400), microseconds(800)};
  struct Outcome {
    at::Tensor weights;
    std::vector<std::int64_t> sizes;
    double seconds = 0;
  };
  // The ranks, which are threads here, would draw from one generator at the same time.
  const auto initial = testing::tiny_model(options.seed);
  const auto train = [&](Split split) {
    std::vector<Outcome> outcomes(2);
    on_connected_ranks(2, [&](comm::Communicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      auto model = std::make_shared<SlowModel>(a_sample[rank]);
      const at::NoGradGuard no_grad;
      for (auto& parameter : model->named_parameters()) {
        parameter.value().copy_(initial->named_parameters()[parameter.key()]);
      }
      settings::DataOptions data;
      data.split = split;
      {
        const at::AutoGradMode with_grad(true);
        TrainerRig rig(options, communicator, model, wanted, at::kCPU, data);
        const double begin_s = monotonic_seconds();
        rig.run_to(1000);
        outcomes[rank] = {rig.weights(), shard_sizes(rig.trainer.partition(), {0, 1000}),
                          monotonic_seconds() - begin_s};
      }
    });
    return outcomes;
  };
  const auto even = train(Split::kEven);
  const auto measured = train(Split::kThroughput);
  for (const Outcome& outcome : measured) {
    CHECK(at::allclose(outcome.weights, alone.weights(), 1e-4, 1e-6));
    CHECK(outcome.weights.equal(measured[0].weights));
    CHECK(outcome.sizes == measured[0].sizes);
    CHECK(outcome.sizes[0] > 580);  // two thirds
    CHECK(outcome.sizes[0] < 750);
    CHECK(outcome.seconds < 0.95 * even[0].seconds);  // 8/12 but for the first steps
  }
}

}  // namespace
}  // namespace mnist_train::train
