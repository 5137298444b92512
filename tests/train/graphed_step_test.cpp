#include "accelerator/device.h"
#include "data/sampler.h"
#include "support/error_of.h"
#include "support/gpu.h"
#include "support/ranks.h"
#include "support/trainer_rig.h"
#include "train/step.h"

namespace mnist_train::train {
namespace {

using Catch::Matchers::ContainsSubstring;
using settings::TrainOptions;
using namespace testing;

struct Calls {
  int captures = 0;
  int replays = 0;
};

/// A mock graph whose replay runs the captured work again, without new arguments.
class RepeatingGraph : public accelerator::DeviceGraph {
 public:
  explicit RepeatingGraph(Calls& calls) : calls_(calls) {}

  void capture(const std::function<void()>& work) override {
    ++calls_.captures;
    work_ = work;
  }
  void replay() override {
    ++calls_.replays;
    work_();
  }

 private:
  Calls& calls_;
  std::function<void()> work_;
};

/// Returns a factory of mock graphs that count their calls.
accelerator::GraphFactory repeating(Calls& calls) {
  return [&calls] { return std::make_unique<RepeatingGraph>(calls); };
}

const SmallImages kImages{.count = 50};
const settings::AugmentList kCropAndMix{settings::RandomCropOptions{std::nullopt, 2},
                                        settings::MixupOptions{0.5, std::nullopt, {}}};

/// Ten epochs, each with batches of 20, 20 and 10 samples.
TrainOptions long_run() {
  TrainOptions options = small_run();
  options.epochs = 10;
  return options;
}

void check_same_training(const TrainOptions& options, const settings::AugmentList& augment,
                         const std::vector<float>& class_weights = {}) {
  settings::DataOptions data;
  data.augment = augment;
  Calls calls;
  TrainerRig eager(options, one_rank(), nullptr, kImages, at::kCPU, data, {}, nullptr, nullptr,
                   class_weights);
  TrainerRig graphed(options, one_rank(), nullptr, kImages, at::kCPU, data, repeating(calls),
                     nullptr, nullptr, class_weights);
  CHECK(std::string(eager.trainer.execution()) == "eager");
  CHECK(std::string(graphed.trainer.execution()) == "graph");
  for (int step = 1; step <= 30; ++step) {
    eager.run_to(step);
    graphed.run_to(step);
    INFO("step " << step);
    CHECK(graphed.trainer.last_step_sums().loss == eager.trainer.last_step_sums().loss);
    CHECK(graphed.trainer.last_step_sums().correct == eager.trainer.last_step_sums().correct);
    CHECK(graphed.weights().equal(eager.weights()));
    if (!options.ema) continue;
    CHECK(graphed.trainer.ema()->values().equal(eager.trainer.ema()->values()));
  }
  CHECK(calls.captures == 1);
  CHECK(calls.replays == 17);  // 20 full batches; the first three are eager
}

TEST_CASE("a captured step of several shards trains like an eager one") {
  TrainOptions options = long_run();
  options.shards = 3;
  check_same_training(options, {});
  // Global mixup also gathers samples of the next shard.
  check_same_training(options, {settings::MixupOptions{0.4, {}, settings::MixupScope::kGlobal}});
}

TEST_CASE("a captured step trains like an eager one, even if rates change between steps") {
  TrainOptions options = long_run();
  options.schedule.name = settings::ScheduleName::kCosine;
  options.schedule.warmup_epochs = 1;
  options.max_gradient_norm = 0.5;
  check_same_training(options, {});
  options.optimizer = settings::OptimizerName::kAdam;
  check_same_training(options, {});
  options.optimizer = settings::OptimizerName::kAdamW;
  options.label_smoothing = 0.1;
  options.ema = {0.9};
  check_same_training(options, kCropAndMix);
}

TEST_CASE("a captured step divides by the sum of its own samples' class weights") {
  TrainOptions options = long_run();
  const std::vector<float> weights{0.5F, 3, 1, 0.25F, 2, 1, 0, 8, 1, 0.125F};
  check_same_training(options, {}, weights);
  options.label_smoothing = 0.1;
  options.ema = {0.9};
  check_same_training(options, {settings::MixupOptions{0.5, std::nullopt, {}}}, weights);
}

/// One rank's step and everything it needs, with 20 samples per step.
struct Parts {
  Parts(const TrainOptions& run_options, const settings::AugmentList& augment)
      : options(run_options), images(make_images(augment)) {
    images->set_order(data::epoch_permutation(images->count(), 1, 0));
  }

  static std::unique_ptr<loader::BatchSource> make_images(const settings::AugmentList& augment) {
    const SmallImages wanted{.count = 20 * 50};
    auto augmenter = augment.empty() ? nullptr
                                     : std::make_shared<loader::Augmenter>(
                                           augment, settings::ImageSize{16, 16}, 1, at::kCPU);
    return loader::make_batch_source(small_images(wanted), {}, at::kCPU, at::kFloat,
                                     std::move(augmenter));
  }

  /// Returns step `number` of the epoch; each step has different rates.
  PlannedStep plan(std::int64_t number) const {
    const data::Range shard{20 * number, std::min<std::int64_t>(20 * (number + 1), 20 * 50)};
    if (shard.begin >= shard.end) return {0, {}, {0}, {0, 1}, {}};
    return {shard.size(),
            {{shard}},
            {shard.size()},
            {0, 1},
            {1e-3 * static_cast<double>(number + 1), average_weight(0.9, number + 1)}};
  }

  void run_eagerly(const PlannedStep& planned) {
    step.begin(planned.samples, 1);
    step.add(images->gather({planned.local_shard(0)}));
    step.finish(
        at::tensor({planned.rates.learning_rate, planned.rates.average_weight}, at::kDouble));
    log.append(log.scalars().unsqueeze(0));
  }

  /// Takes one step eagerly or replays up to `max_steps` steps of `plan_ahead`. Returns the number.
  template <class Plan>
  std::int64_t take(GraphedStep& graphed, const Plan& plan_ahead, std::int64_t max_steps) {
    std::vector<PlannedStep> planned{plan_ahead(0)};
    if (!graphed.can_replay(planned.front())) {
      run_eagerly(planned.front());
      return 1;
    }
    for (std::int64_t ahead = 1; ahead < std::min(max_steps, GraphedStep::kStepsAtOnce); ++ahead) {
      planned.push_back(plan_ahead(ahead));
    }
    return graphed.replay(planned);
  }

  std::vector<FinishedStep> finished(std::int64_t steps) {
    for (std::int64_t i = 1; i <= steps; ++i) log.describe_next(i, 20 * i, 0);
    StepSums sums;
    log.synchronize(sums);
    return log.take();
  }

  TrainOptions options;
  std::unique_ptr<loader::BatchSource> images;
  std::shared_ptr<TinyModel> model = tiny_model(1, true);
  FlatParameters parameters{*model, StepLog::kScalars};
  std::unique_ptr<BatchPartition> partition = make_batch_partition({}, one_rank(), at::kCPU);
  std::unique_ptr<comm::GradientAverager> averager =
      comm::make_gradient_averager(options, one_rank(), parameters.gradient_buffer());
  EmaModel average{*model, parameters, tiny_model(2, true)};
  Optimizer optimizer{options, parameters, {}, &average};
  StepLog log{parameters.statistics(), parameters.shard_statistics(), one_rank(),
              /*runs_ahead=*/false};
  Step step{options, *model, parameters, *partition, *averager, optimizer, log};
};

TEST_CASE("only steps with the captured shard sizes are replayed; other sizes warm up again") {
  Parts parts(long_run(), {});
  Calls calls;
  GraphedStep graphed(parts.step, *parts.images, 20, repeating(calls));
  const auto run = [&](const std::vector<std::int64_t>& sizes) {
    const data::Range shard{0, sizes[0]};
    const data::Range others{sizes[0], sizes[0] + sizes[1]};
    const PlannedStep planned{others.end, {{shard, others}}, sizes, {0, 1}, {0.01}};
    if (graphed.can_replay(planned)) CHECK(graphed.replay({&planned, 1}) == 1);
    return calls.replays;
  };
  for (int i = 0; i < 2; ++i) CHECK(run({10, 10}) == 0);
  for (int i = 0; i < 3; ++i) CHECK(run({12, 8}) == 0);
  CHECK(run({12, 8}) == 1);
  CHECK(run({10, 10}) == 1);  // also 20 samples, but split differently
  CHECK(run({20, 0}) == 1);
  CHECK(run({12, 7}) == 1);
  CHECK(run({12, 8}) == 2);
  CHECK(calls.captures == 1);
}

void check_many_at_once(const TrainOptions& options, const settings::AugmentList& augment) {
  constexpr std::int64_t kSteps = 50;
  Parts eager(options, augment);
  for (std::int64_t number = 0; number < kSteps; ++number) {
    eager.run_eagerly(eager.plan(number));
  }
  Calls calls;
  Parts many(options, augment);
  GraphedStep graphed(many.step, *many.images, 20, repeating(calls));
  std::vector<std::int64_t> taken;
  for (std::int64_t number = 0; number < kSteps; number += taken.back()) {
    const std::int64_t max_steps = number == 19 ? 5 : kSteps;  // as before a checkpoint
    const auto plan = [&](std::int64_t ahead) { return many.plan(number + ahead); };
    taken.push_back(many.take(graphed, plan, max_steps));
  }
  CHECK(taken ==
        std::vector<std::int64_t>{1, 1, 1, 16, 1, 16, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(calls.captures == 2);
  CHECK(many.parameters.values().equal(eager.parameters.values()));
  CHECK(many.average.values().equal(eager.average.values()));
  CHECK_FALSE(many.average.values().equal(many.parameters.values()));
  CHECK(many.average.model().buffers().front().equal(eager.average.model().buffers().front()));
  CHECK(many.model->buffers().front().equal(eager.model->buffers().front()));
  const std::vector<FinishedStep> expected = eager.finished(kSteps);
  const std::vector<FinishedStep> steps = many.finished(kSteps);
  REQUIRE(steps.size() == expected.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    INFO("step " << i);
    CHECK(steps[i].sums.loss == expected[i].sums.loss);
    CHECK(steps[i].sums.correct == expected[i].sums.correct);
    CHECK(steps[i].sums.samples == 20);
  }
}

TEST_CASE("many steps in one replay train like single steps") {
  TrainOptions options = long_run();
  check_many_at_once(options, {});
  options.max_gradient_norm = 0.5;
  options.optimizer = settings::OptimizerName::kAdam;
  check_many_at_once(options, kCropAndMix);
}

TEST_CASE("a replayed step costs the host less than 10 microseconds") {
  class IdleGraph : public accelerator::DeviceGraph {
   public:
    void capture(const std::function<void()>&) override {}
    void replay() override {}
  };
  Parts parts(long_run(), {});
  GraphedStep graphed(parts.step, *parts.images, 20, [] { return std::make_unique<IdleGraph>(); });
  std::int64_t number = 0;
  // Two replays of sixteen steps, after which the plan starts over.
  const auto plan = [&](std::int64_t ahead) { return parts.plan((number + ahead) % 32); };
  for (; number < 3; ++number) parts.take(graphed, plan, 1);
  number = 32;
  double least_us = 1e9;
  for (int round = 0; round < 20; ++round) {
    const double begin_s = monotonic_seconds();
    const std::int64_t end = number + 160;
    while (number < end) number += parts.take(graphed, plan, 16);
    least_us = std::min(least_us, (monotonic_seconds() - begin_s) * 1e6 / 160);
  }
  std::cout << "a replayed step costs the host " << least_us << " us\n";
  CHECK(least_us < 10);
}

TEST_CASE("a captured step reports a stop request only if it was made for that step") {
  Calls calls;
  TrainerRig rig(long_run(), one_rank(), nullptr, kImages, at::kCPU, {}, repeating(calls));
  rig.run_to(12);
  REQUIRE(calls.replays > 0);
  rig.trainer.begin_epoch();
  std::vector<double> requests;
  for (const bool wanted : {false, true, false}) {
    rig.trainer.step(wanted);
    requests.push_back(rig.trainer.last_step_sums().stop_requests);
  }
  CHECK(requests == std::vector<double>{0, 1, 0});
}

TEST_CASE("steps that cannot be captured run eagerly, or are an error if cuda_graphs is on") {
  Calls calls;
  const auto obstacle_of = [&](TrainOptions options, const comm::Communicator& communicator,
                               settings::Split split = settings::Split::kEven) {
    settings::DataOptions data;
    data.split = split;
    const auto make = [&] {
      return TrainerRig(options, communicator, nullptr, kImages, at::kCPU, data, repeating(calls));
    };
    CHECK(std::string(make().trainer.execution()) == "eager");
    options.cuda_graphs = settings::CudaGraphs::kOn;
    const auto failure = error_of([&] { (void)make(); });
    CHECK(failure.code == ExitCode::kConfig);
    return failure.message;
  };
  TrainOptions accumulating = long_run();
  accumulating.gradient_accumulation_steps = 2;
  CHECK_THAT(obstacle_of(accumulating, one_rank()),
             ContainsSubstring("gradient_accumulation_steps is above 1"));
  on_connected_ranks(2, [&](comm::Communicator& communicator) {
    const std::string message = obstacle_of(long_run(), communicator);
    if (communicator.rank() == 0) CHECK_THAT(message, ContainsSubstring("NCCL"));
  });
  TrainOptions insisting = long_run();
  insisting.cuda_graphs = settings::CudaGraphs::kOn;
  CHECK_THAT(error_of([&] { TrainerRig rig(insisting); }).message, ContainsSubstring("CPUs"));
}

/// Compares the losses of graph and eager steps on the GPU, in epochs of 16, 16 and 8 samples, for
/// 40 steps; only 10 for ResNet, which amplifies rounding errors.
void check_on_gpu(const TrainOptions& options, settings::ModelName name, bool bf16) {
  const SmallImages images{.count = 40, .height = 28, .width = 28};
  const auto make = [&](accelerator::GraphFactory make_graph) {
    return TrainerRig(options, one_rank(), built_in_model(name, 1), images,
                      at::Device(at::kCUDA, 0), {}, std::move(make_graph),
                      bf16 ? built_in_model(name, 2) : nullptr);
  };
  TrainerRig eager = make(nullptr);
  TrainerRig graphed = make(accelerator::cuda_module().make_graph);
  const int steps = name == settings::ModelName::kResNet18 ? 10 : 40;
  for (int step = 1; step <= steps; ++step) {
    eager.run_to(step);
    graphed.run_to(step);
    const double expected = eager.trainer.last_step_sums().loss;
    INFO("step " << step);
    CHECK(graphed.trainer.last_step_sums().loss == Approx(expected).epsilon(bf16 ? 1e-2 : 1e-4));
  }
}

TEST_CASE("a CUDA graph trains like eager steps", "[gpu]") {
  if (!have_gpu()) return;
  accelerator::cuda_module().set_device(0);
  at::globalContext().setDeterministicCuDNN(true);
  TrainOptions options = small_run();
  options.epochs = 20;
  options.batch_size = 16;
  options.learning_rate = 0.01;
  for (const auto name : {settings::ModelName::kNet, settings::ModelName::kLeNet,
                          settings::ModelName::kMlp, settings::ModelName::kResNet18}) {
    for (const bool bf16 : {false, true}) {
      INFO("model " << static_cast<int>(name) << ", bf16 " << bf16);
      check_on_gpu(options, name, bf16);
    }
  }
  options.optimizer = settings::OptimizerName::kAdam;
  options.learning_rate = 1e-3;
  options.schedule.name = settings::ScheduleName::kCosine;
  check_on_gpu(options, settings::ModelName::kNet, false);
}

}  // namespace
}  // namespace mnist_train::train
