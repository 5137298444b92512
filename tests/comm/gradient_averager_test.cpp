#include "comm/gradient_averager.h"

#include "data/sampler.h"
#include "support/error_of.h"
#include "support/file_size_limit.h"
#include "support/ranks.h"
#include "support/tiny_model.h"
#include "train/flat_parameters.h"

namespace mnist_train::comm {
namespace {

using settings::AveragingStrategy;
using settings::TrainOptions;
using namespace testing;

constexpr std::int64_t kStatistics = 2;
constexpr int kSteps = 4;  // DDP rebuilds buckets after the first step

TrainOptions with_strategy(AveragingStrategy strategy, bool deterministic = false) {
  TrainOptions options;
  options.gradient_averaging.strategy = strategy;
  options.gradient_averaging.bucket_mb = 0.0005;  // several buckets despite few weights
  options.deterministic = deterministic;
  return options;
}

struct TwoLayers : models::Model {
  at::Tensor forward(const at::Tensor& images) override { return images; }
};

/// A small model whose gradients are in one buffer, as in the trainer.
struct Subject {
  torch::nn::Linear first{8, 16};
  torch::nn::Linear second{16, 3};
  TwoLayers module;
  train::FlatParameters parameters;

  explicit Subject(int ranks = 1)
      : parameters(fill(), kStatistics, nullptr, {SummationTree::for_ranks(ranks)}) {}

  models::Model& fill() {
    const at::NoGradGuard no_grad;
    module.register_module("first", first);
    module.register_module("second", second);
    double value = 0;
    for (at::Tensor& parameter : module.parameters()) {
      parameter.copy_(
          at::arange(parameter.numel(), at::kFloat).reshape(parameter.sizes()).add(value).sin() *
          0.3);
      value += 1;
    }
    return module;
  }

  GradientBuffer buffer() { return parameters.gradient_buffer(); }

  /// Returns the sum of the losses of samples [begin, end).
  at::Tensor loss_sum(data::Range range) {
    const at::Tensor samples =
        at::arange(range.begin * 8, range.end * 8, at::kFloat).reshape({range.size(), 8}).sin();
    return second(at::relu(first(samples))).square().sum();
  }
};

/// Returns a gradient buffer for ranks that compute one shard each; its only row is `flat`.
GradientBuffer one_row_buffer(std::vector<at::Tensor> parameters, const at::Tensor& flat,
                              std::int64_t statistics, int ranks) {
  return {.parameters = std::move(parameters),
          .rows = flat.unsqueeze(0),
          .flat = flat,
          .statistics = statistics,
          .tree = SummationTree::for_ranks(ranks)};
}

/// Returns each step's summed gradients and statistics, for batches of `batch_size` samples.
std::vector<at::Tensor> steps(const Communicator& communicator, const TrainOptions& options,
                              std::int64_t batch_size) {
  Subject subject(communicator.world_size());
  const auto averager = make_gradient_averager(options, communicator, subject.buffer());
  std::vector<at::Tensor> results;
  for (int step = 0; step < kSteps; ++step) {
    const data::Range mine = data::shard({step * 100, step * 100 + batch_size}, communicator.rank(),
                                         communicator.world_size());
    subject.parameters.begin_shard(0);
    averager->begin();
    const at::Tensor loss = subject.loss_sum(mine);
    subject.parameters.statistics()[0].fill_(loss.item<double>());
    subject.parameters.statistics()[1].fill_(mine.size());
    averager->backward(loss / static_cast<double>(batch_size), /*gradient=*/{}, /*last=*/true);
    subject.parameters.collect_gradients();
    averager->average();
    averager->complete_sum();
    averager->all_gather();
    results.push_back(at::cat({subject.parameters.gradients(), subject.parameters.statistics()}));
  }
  return results;
}

/// Runs a rank's forward and backward pass through a bf16 model.
void backward_in_bf16(models::Model& model, GradientAverager& averager,
                      train::FlatParameters& parameters, double shift, bool last) {
  const at::Tensor images =
      at::arange(4 * 16 * 16, at::kFloat).add(shift).sin().view({4, 1, 16, 16});
  const at::Tensor logits = model.forward(images.to(at::kBFloat16));
  averager.backward(logits.to(at::kFloat).square().sum(), /*gradient=*/{}, last);
  parameters.collect_gradients();
}

/// The gradients of a bf16 network before and after they are summed.
struct Bf16Gradients {
  std::size_t rows;
  bool in_bf16;
  std::size_t rows_afterwards;
  at::Tensor summed;
};

Bf16Gradients bf16_gradients(const Communicator& communicator, AveragingStrategy strategy) {
  const auto master = tiny_model(1);
  const auto computing = tiny_model(1);
  computing->to(at::kBFloat16);
  const TrainOptions options = with_strategy(strategy);
  const bool deferred = strategy == AveragingStrategy::kSharedMemory;
  train::FlatParameters parameters(
      *master, 1, computing.get(),
      {SummationTree::for_ranks(communicator.world_size()), communicator.rank(), deferred});
  const auto averager = make_gradient_averager(options, communicator, parameters.gradient_buffer());
  parameters.begin_shard(0);
  averager->begin();
  backward_in_bf16(*computing, *averager, parameters, communicator.rank(), /*last=*/true);
  averager->average();
  const DeferredSum sum = averager->deferred_sum();
  averager->complete_sum();
  averager->complete_sum();  // a second call changes nothing
  const DeferredSum afterwards = averager->deferred_sum();
  averager->all_gather();
  return {sum.rows.size(), sum.rows.front().bf16.defined(), afterwards.rows.size(),
          parameters.gradients().clone()};
}

/// Returns the sum of the bf16 gradients of `batches` batches on each of 2 ranks, as computed by
/// `strategy` and as computed exactly from the gradients of each batch.
std::pair<at::Tensor, at::Tensor> bf16_sums(AveragingStrategy strategy, std::int64_t batches) {
  const auto sums = results_of_ranks(2, [&](Communicator& communicator) {
    at::Tensor exact;
    const auto master = tiny_model(1);
    const auto computing = tiny_model(1);
    computing->to(at::kBFloat16);
    train::FlatParameters parameters(*master, 1, computing.get(), {SummationTree::for_ranks(2)});
    for (const at::Tensor& parameter : computing->parameters()) {
      parameter.register_hook([&](const at::Tensor& gradient) {
        const at::Tensor view = gradient.to(at::kDouble).abs().sum().reshape({1});
        exact = exact.defined() ? exact + view : view;
        return gradient.abs();
      });
    }
    const auto averager =
        make_gradient_averager(with_strategy(strategy), communicator, parameters.gradient_buffer());
    for (int step = 0; step < 2; ++step) {  // DDP rebuilds buckets after the first step
      exact = at::Tensor();
      parameters.begin_shard(0);
      averager->begin();
      for (std::int64_t batch = 0; batch < batches; ++batch) {
        const double shift = 100.0 * static_cast<double>(batch) + communicator.rank();
        backward_in_bf16(*computing, *averager, parameters, shift, batch + 1 == batches);
      }
      averager->average();
    }
    return std::pair(parameters.gradients().clone(), exact);
  });
  CHECK(sums[0].first.equal(sums[1].first));
  return {sums[0].first, sums[0].second + sums[1].second};
}

TEST_CASE("every strategy sums bf16 gradients in fp32, over batches and ranks") {
  const std::int64_t batches = GENERATE(1, 12);
  const auto [flat, exact] = bf16_sums(AveragingStrategy::kFlat, batches);
  const auto [bucketed, exact_too] = bf16_sums(AveragingStrategy::kBucketed, batches);
  CHECK(exact.equal(exact_too));
  CHECK(at::allclose(bucketed, flat, 1e-6, 0));
  CHECK(bucketed.to(at::kDouble).sum().item<double>() ==
        Approx(exact.item<double>()).epsilon(1e-6));
  CHECK_FALSE(bucketed.equal(bucketed.to(at::kBFloat16).to(at::kFloat)));
}

TEST_CASE("if one rank's update is not finite, all ranks that share weights learn of it") {
  const auto finite = results_of_ranks(3, [](const Communicator& communicator) {
    std::vector<bool> seen;
    const auto averager =
        make_gradient_averager(with_strategy(AveragingStrategy::kSharedMemory), communicator,
                               one_row_buffer({}, at::ones({1000}), kStatistics, 3));
    for (const int broken : {-1, 1}) {
      averager->average();
      seen.push_back(averager->end_update(communicator.rank() != broken));
    }
    return seen;
  });
  for (const auto& seen : finite) CHECK(seen == std::vector<bool>{true, false});
}

TEST_CASE("ranks that share memory sum small tensors in rank order") {
  constexpr int kSums = 100;
  const auto agree = results_of_ranks(3, [](const Communicator& communicator) -> int {
    const auto averager =
        make_gradient_averager(with_strategy(AveragingStrategy::kSharedMemory), communicator,
                               one_row_buffer({}, at::ones({1000}), kStatistics, 3));
    int agreed = 0;
    for (int i = 0; i < kSums; ++i) {
      // Sizes and delays differ, so a rank that does not wait for the others reads old numbers.
      at::Tensor sums = at::full({1 + i % 7, 50}, 0.1 * i * (1 + communicator.rank()), at::kDouble);
      if (i % 3 == communicator.rank()) std::this_thread::sleep_for(std::chrono::microseconds(100));
      const bool summed = averager->all_reduce_small(sums);
      const at::Tensor expected = at::full_like(sums, 0.1 * i + 0.1 * i * 2 + 0.1 * i * 3);
      if (summed && sums.equal(expected)) ++agreed;
    }
    at::Tensor large = at::ones({100'000});
    return averager->all_reduce_small(large) ? 0 : agreed;
  });
  CHECK(agree == std::vector<int>{kSums, kSums, kSums});
}

TEST_CASE("memory is not shared if any rank has a GPU, and all ranks agree on that") {
  const auto decisions = results_of_ranks(2, [](const Communicator& communicator) -> int {
    const at::Device device = communicator.rank() == 0 ? at::kCUDA : at::kCPU;
    const TrainOptions options = share_memory_if_possible({}, communicator, device);
    (void)communicator.sum_over_ranks(
        1);  // hangs unless all ranks took part in the same number of collectives
    return options.gradient_averaging.strategy == AveragingStrategy::kSharedMemory;
  });
  CHECK(decisions == std::vector<int>{0, 0});
}

TEST_CASE("bf16 gradients stay bf16 until they are summed over ranks") {
  for (const int world_size : {2, 3}) {
    const auto ranks = static_cast<std::size_t>(world_size);
    const auto results = results_of_ranks(world_size, [](Communicator& communicator) {
      return std::pair(bf16_gradients(communicator, AveragingStrategy::kSharedMemory),
                       bf16_gradients(communicator, AveragingStrategy::kFlat));
    });
    const at::Tensor& summed = results.front().first.summed;
    for (const auto& [shared, flat] : results) {
      CHECK(shared.rows == ranks);
      CHECK(shared.in_bf16);
      CHECK(shared.rows_afterwards == 1);
      CHECK(shared.summed.equal(summed));
      CHECK(flat.rows == 1);
      CHECK_FALSE(flat.in_bf16);
      CHECK(at::allclose(summed, flat.summed, 1e-6, 1e-6));
    }
    CHECK(summed.abs().max().item<float>() > 0);
  }
}

TEST_CASE("gradients do not depend on how a batch is split") {
  for (const std::int64_t batch_size : {7, 1}) {  // with one sample, some ranks have none
    const std::vector<at::Tensor> expected = steps(Communicator(), {}, batch_size);
    for (const AveragingStrategy strategy : {AveragingStrategy::kFlat, AveragingStrategy::kBucketed,
                                             AveragingStrategy::kSharedMemory}) {
      for (const int world_size : {2, 3}) {
        for (const bool deterministic : {false, true}) {
          if (deterministic && strategy != AveragingStrategy::kBucketed) continue;  // no difference
          const auto results = results_of_ranks(world_size, [&](Communicator& communicator) {
            return steps(communicator, with_strategy(strategy, deterministic), batch_size);
          });
          INFO(batch_size << " samples, " << world_size << " ranks, strategy "
                          << static_cast<int>(strategy));
          for (const auto& result : results) {
            for (std::size_t step = 0; step < kSteps; ++step) {
              REQUIRE(at::allclose(result[step], expected[step], 1e-5, 1e-6));
              REQUIRE(result[step].equal(results[0][step]));  // all ranks are bit-identical
            }
          }
        }
      }
    }
  }
}

TEST_CASE("ranks that share weights see each other's updates") {
  for (const std::int64_t count : {1000, 70, 3}) {  // with 3 elements, some ranks update none
    const int ranks = 3;
    const auto results = results_of_ranks(ranks, [&](const Communicator& communicator) {
      const at::Tensor flat = at::full({count + kStatistics}, 1.0 + communicator.rank());
      const auto averager =
          make_gradient_averager(with_strategy(AveragingStrategy::kSharedMemory), communicator,
                                 one_row_buffer({}, flat, kStatistics, communicator.world_size()));
      const at::Tensor weights = at::full({count}, 10.0 * communicator.rank());
      const at::Tensor view = weights.narrow(0, 0, count);  // views are moved, too
      averager->move_to_shared_memory({weights});
      averager->average();
      averager->complete_sum();
      const Slice slice = averager->owned_slice();
      slice.of(view).sub_(slice.of(flat));
      averager->end_update(/*finite=*/true);
      return std::pair(weights.clone(), flat.narrow(0, count, kStatistics).sum().item<double>());
    });
    for (const auto& [weights, statistics] : results) {
      INFO(count << " elements");
      CHECK(weights.equal(at::full({count}, -6.0)));  // rank 0's zeros minus 1 + 2 + 3
      CHECK(statistics == 6.0 * kStatistics);
    }
  }
}

TEST_CASE("compression rounds gradients but not statistics, and all ranks are bit-identical") {
  const std::vector<at::Tensor> expected = steps(Communicator(), {}, 5);
  const auto strategy = GENERATE(AveragingStrategy::kFlat, AveragingStrategy::kBucketed);
  const auto [compression, tolerance] = GENERATE(table<settings::Compression, double>(
      {{settings::Compression::kFp16, 2e-3}, {settings::Compression::kBf16, 2e-2}}));
  TrainOptions options = with_strategy(strategy);
  options.gradient_averaging.compression = compression;
  const auto results = results_of_ranks(
      2, [&](Communicator& communicator) { return steps(communicator, options, 5); });
  for (std::size_t step = 0; step < kSteps; ++step) {
    const at::Tensor& result = results[0][step];
    CHECK(result.equal(results[1][step]));
    CHECK(result[-1].item<double>() == 5);
    const at::Tensor difference = result - expected[step];
    const double error = difference.norm().item<double>() / expected[step].norm().item<double>();
    CHECK(error > 1e-7);
    CHECK(error < tolerance);
  }
}

TEST_CASE("if memory cannot be shared, every rank reports why instead of waiting for another") {
  const FileSizeLimit too_small(16);
  const auto failures = results_of_ranks(3, [](Communicator& communicator) {
    Subject subject(communicator.world_size());
    return error_of([&] {
      make_gradient_averager(with_strategy(AveragingStrategy::kSharedMemory), communicator,
                             subject.buffer());
    });
  });
  for (const Failure& failure : failures) {
    CHECK_THAT(failure, IsError(ExitCode::kConfig,
                                "rank 0 cannot create memory for all ranks (File too large",
                                "; \"flat\" does not"));
  }
}

TEST_CASE("the configured strategy is used; the default is shared_memory") {
  constexpr std::int64_t kLarge = (25 << 20) / 4;
  const auto [strategy, deterministic, elements, name] =
      GENERATE_COPY(table<AveragingStrategy, bool, std::int64_t, std::string>({
          {AveragingStrategy::kAuto, false, 1000, "shared_memory"},
          {AveragingStrategy::kAuto, true, kLarge, "shared_memory"},
          {AveragingStrategy::kSharedMemory, false, 1000, "shared_memory"},
          {AveragingStrategy::kFlat, false, kLarge, "flat"},
          {AveragingStrategy::kBucketed, false, 1000, "bucketed"},
          {AveragingStrategy::kBucketed, true, 1000, "bucketed"},
      }));
  const TrainOptions options = with_strategy(strategy, deterministic);
  const auto names = results_of_ranks(2, [&, count = elements](Communicator& communicator) {
    const at::Tensor parameter = at::zeros({count}).set_requires_grad(true);
    const GradientBuffer buffer =
        one_row_buffer({parameter}, at::zeros({count + 1}), 1, communicator.world_size());
    const TrainOptions chosen = share_memory_if_possible(options, communicator, at::kCPU);
    return std::string(make_gradient_averager(chosen, communicator, buffer)->name());
  });
  for (const std::string& used : names) CHECK(used == name);
}

using Leaf = SummationTree::Leaf;

std::vector<std::int64_t> divided(std::int64_t shards, int ranks) {
  std::vector<std::int64_t> begins;
  for (int rank = 0; rank < ranks; ++rank) {
    begins.push_back(data::shard({0, shards}, rank, ranks).begin);
  }
  begins.push_back(shards);
  return begins;
}

/// Sums the shards in the order of the ranks and their averager.
at::Tensor summed(const std::vector<at::Tensor>& shards, int ranks) {
  const auto begins = divided(static_cast<std::int64_t>(shards.size()), ranks);
  const SummationTree tree(begins);
  std::vector<at::Tensor> given;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<at::Tensor> rows(tree.rows());
    for (at::Tensor& row : rows) row = at::full_like(shards.front(), 1e9);  // must be overwritten
    auto shard = static_cast<std::size_t>(begins[static_cast<std::size_t>(rank)]);
    for (const Leaf& leaf : tree.leaves(rank)) {
      rows[leaf.row].copy_(shards[shard++]);
      for (const RowSum& sum : leaf.sums) rows[sum.to].add_(rows[sum.from]);
    }
    given.insert(given.end(), rows.begin(),
                 rows.begin() + static_cast<std::ptrdiff_t>(tree.rows_per_rank()));
  }
  if (tree.cross_rank_sums().empty()) return given.front();
  add_rows(given, tree.cross_rank_sums(), given[1]);  // as ranks other than the first do
  return given[1];
}

TEST_CASE("the sum of shards is bit-identical on any number of ranks") {
  for (std::int64_t count = 1; count <= 11; ++count) {
    std::vector<at::Tensor> shards;
    for (std::int64_t shard = 0; shard < count; ++shard) shards.push_back(at::randn({1000}));
    const at::Tensor expected = summed(shards, 1);
    at::Tensor in_turn = at::zeros_like(expected);
    for (const at::Tensor& shard : shards) in_turn += shard;
    CHECK(at::allclose(expected, in_turn, 1e-4, 1e-5));
    // The order of summation affects the bits, so the comparison below is meaningful.
    CHECK(expected.equal(in_turn) == (count <= 3));
    for (int ranks = 1; ranks <= count; ++ranks) {
      INFO(count << " shards on " << ranks << " ranks");
      CHECK(summed(shards, ranks).equal(expected));
    }
  }
}

TEST_CASE("a rank sums complete nodes of the tree and leaves the rest to the sum over ranks") {
  const SummationTree uneven({0, 2, 3, 4});
  CHECK((uneven.leaves(0) == std::vector<Leaf>{{0, {}}, {1, {{0, 1}}}}));
  CHECK((uneven.leaves(2) == std::vector<Leaf>{{0, {}}}));
  CHECK((uneven.cross_rank_sums() == std::vector<RowSum>{{1, 2}, {0, 1}}));
  CHECK(uneven.rows_per_rank() == 1);
  CHECK(uneven.rows() == 2);

  // The second of three ranks has shards 3, 4 and 5 of 8: two nodes.
  const SummationTree crossing({0, 3, 6, 8});
  CHECK(crossing.rows_per_rank() == 2);
  CHECK((crossing.leaves(1) == std::vector<Leaf>{{0, {}}, {1, {}}, {2, {{1, 2}}}}));
  CHECK((crossing.cross_rank_sums() == std::vector<RowSum>{{1, 2}, {0, 1}, {3, 4}, {0, 3}}));
}

}  // namespace
}  // namespace mnist_train::comm
