#include "train/step.h"

#include <cmath>
#include <limits>

#include "models/loss.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/tiny_model.h"

namespace mnist_train::train {
namespace {

using loader::Batch;
using namespace testing;

constexpr double kLearningRate = 0.1;

settings::TrainOptions with_momentum() {
  settings::TrainOptions options;
  options.sgd_momentum = 0.9;
  return options;
}

/// One rank's step and everything it needs.
struct StepSubject {
  bool with_batch_norm = false;
  settings::TrainOptions options = with_momentum();
  double learning_rate = kLearningRate;
  comm::Communicator communicator{};
  std::shared_ptr<TinyModel> model = tiny_model(1, with_batch_norm);
  FlatParameters parameters{*model, StepLog::kScalars};
  std::unique_ptr<BatchPartition> partition = make_batch_partition({}, communicator, at::kCPU);
  std::unique_ptr<comm::GradientAverager> averager =
      comm::make_gradient_averager(options, communicator, parameters.gradient_buffer());
  std::unique_ptr<Optimizer> optimizer{};
  StepLog log{parameters.statistics(), parameters.shard_statistics(), communicator,
              /*runs_ahead=*/false};
  std::unique_ptr<Step> step = make_step();

  /// Rebuilds the step after options have changed.
  std::unique_ptr<Step> make_step() {
    optimizer = std::make_unique<Optimizer>(options, parameters);
    return std::make_unique<Step>(options, *model, parameters, *partition, *averager, *optimizer,
                                  log);
  }
  void run(const std::vector<Batch>& batches, std::int64_t global_batch_size,
           bool stop_requested = false) {
    log.request_stop(stop_requested);
    step->begin(global_batch_size, static_cast<std::int64_t>(batches.size()));
    for (const Batch& batch : batches) step->add(batch);
    step->finish(at::tensor({learning_rate, 0.0}, at::kDouble));
  }
  StepSums last() const { return log.last_sums(); }
  at::Tensor momentum() const { return optimizer->state().front().flat; }
};

Batch batch_of(std::int64_t count) {
  return {at::randn({count, 1, 16, 16}), at::randint(0, 10, {count}, at::kLong)};
}

Batch broken_batch() {
  Batch batch = batch_of(4);
  batch.images[2][0][3][3] = std::numeric_limits<float>::quiet_NaN();
  return batch;
}

TEST_CASE("a step's sums are over its samples, with the weights before the update") {
  StepSubject subject;
  const Batch batch = batch_of(9);
  const auto expected = models::batch_loss(subject.model->forward(batch.images), {batch.labels});
  subject.run({batch}, 9);
  const StepSums sums = subject.last();
  CHECK(sums.loss == Approx(expected.loss_sum.item<double>()).epsilon(1e-6));
  CHECK(sums.correct == expected.correct.item<double>());
  CHECK(sums.samples == 9);
  CHECK(sums.stop_requests == 0);
}

TEST_CASE("the sums of finished steps are kept until they are taken") {
  StepSubject subject;
  StepSums totals{100.5, 7, 30, 0};
  subject.log.synchronize(totals);
  CHECK(totals.samples == 30);
  double loss = 100.5;
  std::vector<double> losses;
  for (int i = 0; i < 3; ++i) {
    subject.run({batch_of(4)}, 4, /*stop_requested=*/i == 1);
    subject.log.append(subject.log.scalars().unsqueeze(0));
    subject.log.describe_next(i + 1, 4 * (i + 1), 0.5 * i);
    losses.push_back(subject.last().loss);
    loss += losses.back();
  }
  CHECK(subject.log.take().empty());
  subject.log.synchronize(totals);
  CHECK(totals.loss == loss);
  CHECK(totals.samples == 42);
  CHECK(totals.stop_requests == 1);
  const std::vector<FinishedStep> steps = subject.log.take();
  REQUIRE(steps.size() == 3);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    CHECK(steps[i].step == static_cast<std::int64_t>(i) + 1);
    CHECK(steps[i].samples_seen == 4 * (static_cast<std::int64_t>(i) + 1));
    CHECK(steps[i].learning_rate == 0.5 * static_cast<double>(i));
    CHECK(steps[i].sums.loss == losses[i]);
    CHECK(steps[i].sums.stop_requests == (i == 1 ? 1 : 0));
  }
  CHECK(steps[0].finished_s < steps[1].finished_s);
  CHECK(subject.log.take().empty());
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Multiplies the gradient of the last parameter.
void break_gradients(const StepSubject& subject, double factor) {
  subject.model->parameters().back().register_hook(
      [factor](const at::Tensor& gradient) { return gradient * factor; });
}

TEST_CASE("a loss or gradient norm that is not finite leaves weights and momentum unchanged") {
  struct Case {
    double factor;  // multiplies one parameter's gradient; 0: the loss is not finite instead
    std::optional<double> max_norm;
  };
  const auto& [factor, max_norm] =
      GENERATE_COPY(Case{0, {}}, Case{kInfinity, 1}, Case{std::nan(""), 1}, Case{1e30, 1});
  CAPTURE(factor, max_norm.has_value());
  StepSubject subject;
  subject.options.max_gradient_norm = max_norm;
  subject.step = subject.make_step();
  subject.run({batch_of(4)}, 4);
  CHECK_FALSE(std::isnan(subject.last().stop_requests));
  const at::Tensor weights = subject.parameters.values().clone();
  const at::Tensor momentum = subject.momentum().clone();
  if (factor != 0) break_gradients(subject, factor);
  subject.run({factor == 0 ? broken_batch() : batch_of(4)}, 4);
  CHECK(std::isnan(subject.last().loss) == (factor == 0));
  CHECK(std::isnan(subject.last().stop_requests) == (factor != 0));
  CHECK(subject.parameters.values().equal(weights));
  CHECK(subject.momentum().equal(momentum));
  if (factor != 0) return;
  subject.run({batch_of(4)}, 4);  // training continues with a valid batch
  CHECK_FALSE(subject.parameters.values().equal(weights));
  CHECK(subject.parameters.values().isfinite().all().item<bool>());
}

TEST_CASE("gradients that are not finite, and infinite weights, are detected") {
  const auto [factor, learning_rate] = GENERATE(table<double, double>(
      {{kInfinity, kLearningRate}, {std::nan(""), kLearningRate}, {1e6, 1e38}}));
  StepSubject subject{.learning_rate = learning_rate};
  break_gradients(subject, factor);
  subject.run({batch_of(4)}, 4);
  CHECK(std::isfinite(subject.last().loss));
  CHECK(std::isnan(subject.last().stop_requests));
}

TEST_CASE("a rank without samples contributes nothing and keeps its running statistics") {
  StepSubject subject{.with_batch_norm = true};
  subject.model->train();
  const at::Tensor weights = subject.parameters.values().clone();
  std::vector<at::Tensor> before;
  for (const at::Tensor& buffer : subject.model->buffers()) before.push_back(buffer.clone());
  subject.run({batch_of(0)}, 10);
  CHECK(subject.last().samples == 0);
  CHECK(subject.last().loss == 0);
  CHECK(subject.parameters.gradients().count_nonzero().item<std::int64_t>() == 0);
  CHECK(subject.parameters.values().equal(weights));
  const auto after = subject.model->buffers();
  REQUIRE(after.size() == 3);
  for (std::size_t i = 0; i < after.size(); ++i) CHECK(after[i].equal(before[i]));
}

TEST_CASE("a rank without samples contributes nothing even if a weight is not finite") {
  StepSubject subject;
  subject.parameters.values()[0] = kInfinity;
  subject.run({batch_of(0)}, 10);
  CHECK(subject.last().loss == 0);
  CHECK(subject.parameters.gradients().isfinite().all().item<bool>());
}

/// A network whose forward pass skips one of its layers.
class ForgetfulModel : public TinyModel {
 public:
  ForgetfulModel() : TinyModel(/*with_batch_norm=*/false) {
    register_module("unused", torch::nn::Linear(2, 3));
  }
};

TEST_CASE("the error about a parameter that does not affect the output names it") {
  for (const bool bf16 : {false, true}) {
    const auto model = std::make_shared<ForgetfulModel>();
    const auto bf16_copy = bf16 ? std::make_shared<ForgetfulModel>() : nullptr;
    if (bf16) bf16_copy->compute_in_bfloat16();
    FlatParameters parameters(*model, 0, bf16_copy.get());
    const auto type = bf16 ? at::kBFloat16 : at::kFloat;
    models::Model& computing = bf16 ? *bf16_copy : *model;
    computing.forward(batch_of(2).images.to(type)).sum().backward();
    CHECK_THAT(error_of([&] { parameters.collect_gradients(); }),
               IsError(ExitCode::kRunFailed, "unused.weight"));
  }
}

TEST_CASE("the error about a loss or update that is not finite has the step and remedies") {
  const auto failure_of = [](double loss, double check) {
    return error_of([&] { require_finite({loss, 0, 1, check}, 7); });
  };
  CHECK(failure_of(1.5, 0).message.empty());
  for (const auto& [loss, text] : {std::pair{std::nan(""), "became NaN at step 7"},
                                   {kInfinity, "became infinite at step 7"},
                                   {-kInfinity, "became infinite at step 7"}}) {
    CHECK_THAT(failure_of(loss, std::nan("")),
               IsError(ExitCode::kRunFailed, text, "learning_rate"));
  }
  CHECK_THAT(failure_of(1.5, std::nan("")),
             IsError(ExitCode::kRunFailed,
                     "at step 7 the loss is finite, but the weight update is not: lower "
                     "learning_rate",
                     "compression"));
}

TEST_CASE("the interval between synchronisations approaches half a second and at most doubles") {
  CHECK(next_interval(10, 1.0) == 5);
  CHECK(next_interval(10, 0.5) == 10);
  CHECK(next_interval(10, 0.001) == 20);
  CHECK(next_interval(40, 0.001) == 80);
  CHECK(next_interval(4000, 0) == 8000);
  CHECK(next_interval(50, 3.0) == 8);
  CHECK(next_interval(1, 30.0) == 1);
  CHECK(next_interval(1 << 20, 0) == StepLog::kSteps);
}

TEST_CASE("if one rank has a GPU, all ranks synchronise after the same steps") {
  const auto synced_steps = results_of_ranks(2, [](comm::Communicator& communicator) {
    const int rank = communicator.rank();
    std::vector<int> synced;
    const at::Tensor sums = at::zeros({StepLog::kScalars});
    StepLog log(sums, sums, communicator, /*runs_ahead=*/rank == 1);
    for (int epoch = 0; epoch < 2; ++epoch) {
      log.begin_epoch();
      for (int step = 0; step < 100; ++step) {
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (!log.is_due_after(1)) continue;
        synced.push_back(100 * epoch + step);
        log.set_next_interval();
      }
    }
    return synced;
  });
  CHECK(synced_steps[0] == synced_steps[1]);
  CHECK(synced_steps[0].size() > 5);
  CHECK(synced_steps[0].size() < 30);
}

}  // namespace
}  // namespace mnist_train::train
