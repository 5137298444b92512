#include "train/trainer.h"

#include <cmath>

#include "support/error_of.h"
#include "support/gpu.h"
#include "support/ranks.h"
#include "support/trainer_rig.h"

namespace mnist_train::train {
namespace {

using settings::AveragingStrategy;
using settings::ModelName;
using settings::TrainOptions;
using namespace testing;

void train_epoch(Trainer& trainer) {
  trainer.begin_epoch();
  while (!trainer.epoch_done()) trainer.step(false);
}

TEST_CASE("the cursor visits every sample of every epoch") {
  TrainerRig rig(small_run());  // 50 samples, 20 per step
  Trainer& trainer = rig.trainer;
  const Progress& progress = trainer.progress();
  CHECK(trainer.samples_per_step() == 20);
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    CHECK_FALSE(trainer.run_done());
    trainer.begin_epoch();
    for (const std::int64_t samples : {20, 40, 50}) {
      CHECK_FALSE(trainer.epoch_done());
      trainer.step(false);
      CHECK(progress.samples_into_epoch == samples);
      CHECK(synced_sums(trainer).samples == static_cast<double>(samples));
      CHECK(progress.samples_seen == 50 * epoch + samples);
    }
    CHECK(trainer.epoch_done());
    CHECK(progress.step == 3 * (epoch + 1));
    trainer.end_epoch({.test_accuracy = 0.25, .seconds = 1.5});
    CHECK(progress.epoch == epoch + 1);
    CHECK(progress.samples_into_epoch == 0);
    CHECK(progress.epoch_sums.samples == 0);
    CHECK(static_cast<std::int64_t>(progress.accuracies.size()) == epoch + 1);
  }
  CHECK(trainer.run_done());
  CHECK(progress.test_seconds == 4.5);
}

TEST_CASE("the best epoch is the first with the best selection score, with its test accuracy") {
  TrainOptions options = small_run();
  options.epochs = 4;
  TrainerRig rig(options);
  const Progress& progress = rig.trainer.progress();
  CHECK(progress.best_step == -1);
  CHECK(progress.best_test_accuracy < 0);
  struct Case {
    double selection, test;
    std::int64_t best_step;
  };
  for (const auto& [selection, test, best_step] :
       {Case{0, 0.8, 3}, Case{0.75, 0.85, 6}, Case{0.5, 0.99, 6}, Case{0.75, 0.9, 6}}) {
    train_epoch(rig.trainer);
    rig.trainer.end_epoch(
        {.test_accuracy = test, .selection_accuracy = selection, .best_score = selection});
    CHECK(progress.best_step == best_step);
  }
  CHECK(progress.best_accuracy == 0.75);
  CHECK(progress.highest_accuracy == 0.75);
  CHECK(progress.best_test_accuracy == 0.85);
  CHECK(progress.best_epoch == 2);
  CHECK(progress.accuracies == std::vector<double>{0.8, 0.85, 0.99, 0.9});
}

TEST_CASE("early stopping counts epochs without an improvement of more than min_delta") {
  TrainOptions options = small_run();
  options.epochs = 20;
  options.early_stopping = {.patience = 2, .min_delta = 0.125};
  TrainerRig rig(options);
  const Progress& progress = rig.trainer.progress();
  // 0.625 does not improve enough on 0.5, but 0.75 does; later ones are compared with 0.75.
  for (const auto& [accuracy, bad_epochs] :
       {std::pair{0.0, 0}, {0.5, 0}, {0.625, 1}, {0.75, 0}, {0.875, 1}, {0.5, 2}}) {
    CHECK(rig.trainer.ended_by() == nullptr);
    train_epoch(rig.trainer);
    rig.trainer.end_epoch({.test_accuracy = 0.5,
                           .selection_accuracy = 1 - accuracy,
                           .best_score = -accuracy,
                           .stopping_accuracy = accuracy});
    CHECK(progress.early_stopping.bad_epochs == bad_epochs);
  }
  CHECK(rig.trainer.run_done());
  CHECK(std::string(rig.trainer.ended_by()) == "early_stopping");
  CHECK(progress.early_stopping.best_accuracy == 0.75);
  CHECK(progress.best_accuracy == 1);
}

TEST_CASE("scores may be negative, stop_at_accuracy ignores them, and the best one can be reset") {
  TrainOptions options = small_run();
  options.epochs = 20;
  options.stop_at_accuracy = 0.75;
  TrainerRig rig(options);
  Progress& progress = rig.trainer.progress();
  for (const auto& [score, accuracy] : {std::pair{-2.5, 0.5}, {-0.5, 0.25}, {-1.5, 0.75}}) {
    CHECK(rig.trainer.ended_by() == nullptr);
    train_epoch(rig.trainer);
    rig.trainer.end_epoch({.selection_accuracy = accuracy, .best_score = score});
  }
  CHECK(std::string(rig.trainer.ended_by()) == "stop_at_accuracy");
  CHECK(progress.best_epoch == 2);
  CHECK(progress.best_score == -0.5);
  CHECK(progress.best_accuracy == 0.25);
  CHECK(progress.highest_accuracy == 0.75);
  progress.forget_best();
  rig.trainer.end_epoch({.selection_accuracy = 0.5, .best_score = -9});
  CHECK(progress.best_score == -9);
  CHECK(progress.highest_accuracy == 0.75);
}

TEST_CASE("only the best weights count an epoch that max_steps cut short") {
  TrainOptions options = small_run();
  options.max_steps = 4;
  options.early_stopping = {.patience = 1};
  options.schedule.name = settings::ScheduleName::kPlateau;
  options.schedule.patience = 0;
  TrainerRig rig(options);
  rig.run_to(100);
  CHECK(std::string(rig.trainer.ended_by()) == "max_steps");
  CHECK(rig.trainer.progress().early_stopping == EarlyStoppingState{0.5, 0});
  CHECK(rig.trainer.progress().plateau == PlateauState{0.7});
  const double highest = rig.trainer.progress().highest_accuracy;
  rig.trainer.end_epoch({.selection_accuracy = 1, .best_score = 1});
  CHECK(rig.trainer.progress().best_accuracy == 1);
  CHECK(rig.trainer.progress().highest_accuracy == highest);  // see stop_at_accuracy
}

/// Batches of 7 out of 22 samples: the last one has a single sample, so only one rank has any.
TrainOptions uneven_run() {
  TrainOptions options = small_run();
  options.batch_size = 7;
  options.learning_rate = 0.01;
  return options;
}

/// Returns rank 1's weights, gradients, EMA and optimizer state after a few steps on two ranks.
std::vector<at::Tensor> trained_by_two(TrainOptions options, AveragingStrategy strategy,
                                       ModelName name, bool bf16) {
  options.gradient_averaging.strategy = strategy;
  // Each rank's model, EMA model and bf16 copy are made here: ranks' threads share a generator.
  std::vector<std::shared_ptr<models::Model>> models;
  for (int i = 0; i < (bf16 ? 6 : 4); ++i) models.push_back(built_in_model(name, 1));
  const auto results = results_of_ranks(2, [&](comm::Communicator& communicator) {
    const bool resnet = name == ModelName::kResNet18;
    const SmallImages images{.count = resnet ? 50 : 22, .height = 28, .width = 28};
    const auto rank = static_cast<std::size_t>(communicator.rank());
    TrainerRig rig(options, communicator, models[rank], images, at::kCPU, {}, nullptr,
                   bf16 ? models[4 + rank] : nullptr, models[2 + rank]);
    rig.run_to(resnet ? 2 : 4);
    rig.trainer.all_gather_gradients();
    std::vector<at::Tensor> result{rig.weights(), rig.trainer.parameters().gradients().clone(),
                                   rig.trainer.ema()->values().clone()};
    for (const OptimizerTensor& state : rig.trainer.optimizer().state()) {
      result.push_back(state.flat.clone());
    }
    return result;
  });
  return results.back();
}

TEST_CASE("ranks that share weights and state train bit-identically to ranks with their own") {
  TrainOptions options = uneven_run();
  options.ema = {0.9};
  options.optimizer = GENERATE(settings::OptimizerName::kSgd, settings::OptimizerName::kAdamW);
  const bool accumulates_and_clips = GENERATE(false, true);
  if (accumulates_and_clips) {
    options.gradient_accumulation_steps = 2;
    options.max_gradient_norm = 0.5;
  }
  // ResNet's batch norm stays fp32; only one combination trains ResNet, because it is slow.
  const bool resnet = options.optimizer == settings::OptimizerName::kAdamW &&
                      accumulates_and_clips && GENERATE(false, true);
  const auto name = resnet ? ModelName::kResNet18 : ModelName::kNet;
  const bool bf16 = resnet || GENERATE(false, true);
  if (resnet) options.epochs = 1;
  const auto copies = trained_by_two(options, AveragingStrategy::kFlat, name, bf16);
  const auto shared = trained_by_two(options, AveragingStrategy::kSharedMemory, name, bf16);
  REQUIRE(shared.size() == copies.size());
  for (std::size_t i = 0; i < shared.size(); ++i) {
    INFO("tensor " << i);
    CHECK(shared[i].equal(copies[i]));
    CHECK(shared[i].abs().sum().item<double>() > 0);
  }
}

TEST_CASE("a NaN on one rank stops all ranks at the same step, with unchanged weights") {
  TrainOptions options = small_run();
  // With a copy of the weights per rank, and with shared weights.
  options.gradient_averaging.strategy =
      GENERATE(AveragingStrategy::kFlat, AveragingStrategy::kSharedMemory);
  const auto results = results_of_ranks(3, [&](comm::Communicator& communicator) {
    TrainerRig rig(options, communicator);
    rig.trainer.begin_epoch();
    rig.trainer.step(false);
    synced_sums(rig.trainer);
    at::Tensor values = rig.trainer.parameters().values();
    communicator.barrier();
    if (communicator.rank() == 1) values[5] = std::nan("");
    communicator.barrier();
    const at::Tensor before = values.clone();
    const Failure failure = error_of([&] {
      rig.trainer.step(false);
      synced_sums(rig.trainer);
    });
    return std::pair(failure, at::allclose(values, before, 0, 0, /*equal_nan=*/true));
  });
  for (const auto& [failure, untouched] : results) {
    CHECK_THAT(failure, IsError(ExitCode::kRunFailed, "NaN at step 2"));
    CHECK_FALSE(failure.is_peer_error);
    CHECK(untouched);
  }
}

TEST_CASE("losses on a GPU match the CPU's for 20 full-batch steps of net", "[gpu]") {
  if (!have_gpu()) return;
  at::globalContext().setAllowTF32CuDNN(false);  // to compare in fp32
  TrainOptions options = small_run();
  options.epochs = 20;
  options.batch_size = 64;
  options.learning_rate = 0.01;
  const SmallImages images{.count = 64, .height = 28, .width = 28};
  TrainerRig host(options, one_rank(), models::make_model({}, {}, 1), images);
  TrainerRig device(options, one_rank(), models::make_model({}, {}, 1), images,
                    at::Device(at::kCUDA, 0));
  for (int step = 1; step <= 20; ++step) {
    host.run_to(step);
    device.run_to(step);
    const double expected = host.trainer.last_step_sums().loss;
    INFO("step " << step);
    CHECK(device.trainer.last_step_sums().loss == Approx(expected).epsilon(1e-4));
  }
  const auto computed = device.trainer.model().parameters();
  const auto expected = host.trainer.model().parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK((computed[i].cpu() - expected[i]).norm().item<double>() <
          1e-3 * expected[i].norm().item<double>());
  }
  at::globalContext().setAllowTF32CuDNN(true);
}

TEST_CASE("cuDNN benchmarks algorithms only in long runs that are not deterministic", "[gpu]") {
  if (!have_gpu()) return;
  const auto tries = [](std::int64_t epochs, bool deterministic) {
    TrainOptions options = small_run();
    options.epochs = epochs;
    options.deterministic = deterministic;
    at::globalContext().setBenchmarkCuDNN(false);
    const TrainerRig rig(options, one_rank(), nullptr, {.count = 50}, at::Device(at::kCUDA, 0));
    return at::globalContext().benchmarkCuDNN();
  };
  CHECK_FALSE(tries(3, false));
  CHECK(tries(10'000, false));
  CHECK_FALSE(tries(10'000, true));
}

TEST_CASE("on a GPU, a NaN is reported at the next synchronisation", "[gpu]") {
  if (!have_gpu()) return;
  TrainerRig rig(small_run(), one_rank(), nullptr, {.count = 50}, at::Device(at::kCUDA, 0));
  rig.trainer.begin_epoch();
  rig.trainer.step(false);
  synced_sums(rig.trainer);
  rig.trainer.parameters().values()[5].fill_(std::nan(""));
  const Failure failure = error_of([&] {
    rig.trainer.step(false);
    synced_sums(rig.trainer);
  });
  CHECK(failure.code == ExitCode::kRunFailed);
}

/// A trainer for a built-in model, in bf16 or fp32.
struct Subject {
  Subject(ModelName name, bool bf16, const settings::TrainOptions& options = small_run())
      : images(loader::make_batch_source(small_images({.count = 60, .height = 28, .width = 28}),
                                         {0.5, 0.25}, at::kCPU, bf16 ? at::kBFloat16 : at::kFloat)),
        trainer(options,
                {.make_model = [name] { return built_in_model(name, /*seed=*/1); }, .bf16 = bf16},
                *images, one_rank()) {}

  double step() {
    if (trainer.progress().step == 0) trainer.begin_epoch();
    trainer.step(/*stop_requested=*/false);
    return trainer.last_step_sums().loss / trainer.last_step_sums().samples;
  }

  std::unique_ptr<loader::BatchSource> images;
  Trainer trainer;
};

TEST_CASE("updates too small for bf16 accumulate in the fp32 weights") {
  settings::TrainOptions options = small_run();
  options.learning_rate = 1e-6;
  Subject subject(ModelName::kMlp, true, options);
  const at::Tensor before = subject.trainer.parameters().values().clone();
  subject.step();
  CHECK_FALSE(at::equal(before, subject.trainer.parameters().values()));
}

TEST_CASE("batch norm keeps fp32 parameters and statistics in bf16") {
  Subject subject(ModelName::kResNet18, true);
  CHECK(std::isfinite(subject.step()));
  const auto buffers = subject.trainer.model().named_buffers();
  CHECK(buffers["1.running_mean"].scalar_type() == at::kFloat);
  CHECK(buffers["1.running_mean"].abs().sum().item<double>() > 0);  // copied from the bf16 model
  CHECK(buffers["1.num_batches_tracked"].item<std::int64_t>() == 1);
}

TEST_CASE("accumulated bf16 gradients are summed in fp32") {
  settings::TrainOptions whole = small_run();
  whole.batch_size = 60;
  settings::TrainOptions parts = small_run();
  parts.batch_size = 10;
  parts.gradient_accumulation_steps = 6;
  Subject a(ModelName::kNet, true, whole);
  Subject b(ModelName::kNet, true, parts);
  for (Subject* subject : {&a, &b}) {
    subject->step();
    subject->trainer.all_gather_gradients();
  }
  const at::Tensor difference =
      a.trainer.parameters().gradients() - b.trainer.parameters().gradients();
  CHECK(difference.norm().item<double>() <
        0.01 * a.trainer.parameters().gradients().norm().item<double>());
}

TEST_CASE("the first step refreshes the bf16 model from restored weights") {
  Subject subject(ModelName::kNet, true);
  const double first = subject.step();
  Subject other(ModelName::kNet, true);
  other.trainer.parameters().values().zero_();  // emulates restoring a checkpoint
  CHECK(other.step() == Approx(std::log(10.0)).epsilon(1e-3));
  CHECK(first != Approx(std::log(10.0)).epsilon(1e-3));
}

}  // namespace
}  // namespace mnist_train::train
