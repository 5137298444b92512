#include "train/optimizer.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>

#include "kernels/agreement.h"
#include "kernels/emulated_kernels.h"
#include "support/catch.h"
#include "support/trainer_rig.h"
#include "train/step.h"

namespace mnist_train::train {
namespace {

using settings::OptimizerName;
using settings::TrainOptions;
using namespace testing;

TrainOptions options_of(OptimizerName name, double momentum, bool nesterov, double weight_decay) {
  TrainOptions options;
  options.optimizer = name;
  options.sgd_momentum = momentum;
  options.nesterov = nesterov;
  options.weight_decay = weight_decay;
  options.adam_beta1 = 0.8;
  options.adam_beta2 = 0.95;
  options.adam_epsilon = 1e-6;
  return options;
}

TrainOptions sgd(double momentum, bool nesterov, double weight_decay) {
  return options_of(OptimizerName::kSgd, momentum, nesterov, weight_decay);
}

TrainOptions adam(OptimizerName name, double weight_decay) {
  return options_of(name, 0, false, weight_decay);
}

/// Returns LibTorch's optimizer with these options.
std::unique_ptr<torch::optim::Optimizer> libtorch_optimizer(const TrainOptions& options,
                                                            const at::Tensor& values) {
  namespace optim = torch::optim;
  const std::vector<at::Tensor> parameters{values};
  const auto with_adam_options = [&](auto adam_options) {
    return adam_options.betas(std::make_tuple(options.adam_beta1, options.adam_beta2))
        .eps(options.adam_epsilon)
        .weight_decay(options.weight_decay);
  };
  if (options.optimizer == OptimizerName::kAdam) {
    return std::make_unique<optim::Adam>(parameters, with_adam_options(optim::AdamOptions()));
  }
  if (options.optimizer == OptimizerName::kAdamW) {
    return std::make_unique<optim::AdamW>(parameters, with_adam_options(optim::AdamWOptions()));
  }
  return std::make_unique<optim::SGD>(parameters, optim::SGDOptions(0.1)
                                                      .momentum(options.sgd_momentum)
                                                      .nesterov(options.nesterov)
                                                      .weight_decay(options.weight_decay));
}

/// Returns gradients of both signs that differ between steps.
at::Tensor gradients_of(int step, std::int64_t count) {
  return at::arange(count, at::kFloat).mul(0.7).add(step).sin();
}

void take_step(const FlatParameters& parameters, const Optimizer& optimizer, int number,
               double learning_rate) {
  kernels::WeightUpdate update;
  update.values = parameters.values();
  update.gradients = parameters.gradients();
  update.gradients.copy_(gradients_of(number, update.values.numel()));
  update.learning_rate = at::scalar_tensor(learning_rate, at::kDouble);
  kernels::update_with_libtorch(update, optimizer.rule());
}

TEST_CASE("every optimizer matches LibTorch's in fp64, for every setting") {
  for (const TrainOptions& options :
       {sgd(0, false, 0), sgd(0, false, 0.1), sgd(0.9, false, 0), sgd(0.5, false, 0.01),
        sgd(0.9, true, 0), sgd(0.9, true, 0.05), adam(OptimizerName::kAdam, 0),
        adam(OptimizerName::kAdam, 0.1), adam(OptimizerName::kAdamW, 0),
        adam(OptimizerName::kAdamW, 0.1)}) {
    const bool is_sgd = options.optimizer == OptimizerName::kSgd;
    const auto model = tiny_model(1);
    const FlatParameters parameters(*model, 0);
    Optimizer optimizer(options, parameters);
    at::Tensor expected = parameters.values().to(at::kDouble);
    expected.set_requires_grad(true);
    const auto reference = libtorch_optimizer(options, expected);
    for (int step = 0; step < 30; ++step) {
      const double learning_rate = (is_sgd ? 0.1 : 0.01) / (1 + step);  // differs between steps
      take_step(parameters, optimizer, step, learning_rate);
      expected.mutable_grad() = parameters.gradients().to(at::kDouble);
      reference->param_groups()[0].options().set_lr(learning_rate);
      reference->step();
      INFO(optimizer.name() << ", momentum " << options.sgd_momentum << ", step " << step);
      REQUIRE(
          at::allclose(parameters.values().to(at::kDouble), expected, is_sgd ? 1e-5 : 1e-4, 1e-6));
    }
    CHECK(parameters.gradients().equal(gradients_of(29, parameters.values().numel())));
  }
}

TEST_CASE("an optimizer resumes bit-identically from its state, named as in PyTorch") {
  struct Case {
    TrainOptions options;
    std::vector<std::string> names;
  };
  for (const auto& [options, names] :
       {Case{sgd(0, false, 0.1), {}}, Case{sgd(0.9, false, 0.01), {"momentum_buffer"}},
        Case{sgd(0.9, true, 0.01), {"momentum_buffer"}},
        Case{adam(OptimizerName::kAdam, 0.1), {"exp_avg", "exp_avg_sq"}},
        Case{adam(OptimizerName::kAdamW, 0.1), {"exp_avg", "exp_avg_sq"}}}) {
    const auto model = tiny_model(1);
    const FlatParameters parameters(*model, 0);
    Optimizer optimizer(options, parameters);
    for (int number = 0; number < 5; ++number) take_step(parameters, optimizer, number, 0.05);
    const auto other_model = tiny_model(2);
    const FlatParameters other(*other_model, 0);
    Optimizer resumed(options, other);
    other.values().copy_(parameters.values());
    REQUIRE(resumed.state().size() == names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      CHECK(resumed.state()[i].name == names[i]);
      resumed.state()[i].flat.copy_(optimizer.state()[i].flat);
    }
    resumed.restored(5);
    for (int number = 5; number < 9; ++number) {
      take_step(parameters, optimizer, number, 0.05);
      take_step(other, resumed, number, 0.05);
    }
    CHECK(other.values().equal(parameters.values()));
    for (std::size_t i = 0; i < names.size(); ++i) {
      CHECK(resumed.state()[i].flat.equal(optimizer.state()[i].flat));
    }
  }
}

/// Returns gradients of which the first `bf16` elements are bf16 and the rest fp32.
comm::GradientRow row(const at::Tensor& gradients, std::int64_t bf16) {
  const std::int64_t rest = gradients.numel() - bf16;
  return {bf16 == 0 ? at::Tensor() : gradients.narrow(0, 0, bf16).to(at::kBFloat16),
          gradients.narrow(0, bf16, rest).clone()};
}

at::Tensor in_f32(const comm::GradientRow& row) {
  return row.bf16.defined() ? at::cat({row.bf16.to(at::kFloat), row.f32}) : row.f32;
}

comm::DeferredSum drawn_gradients(std::size_t rows, std::int64_t count, std::int64_t bf16,
                                  int step) {
  comm::DeferredSum sum;
  for (std::size_t i = 0; i < rows; ++i) {
    sum.rows.push_back(row(gradients_of(step + 3 * static_cast<int>(i), count), bf16));
  }
  sum.order = comm::SummationTree::for_ranks(static_cast<int>(rows)).cross_rank_sums();
  return sum;
}

/// Weights, an optimizer with its state, EMA model and bf16 copy.
struct UpdateSubject {
  std::shared_ptr<TinyModel> model = tiny_model(1);
  FlatParameters parameters{*model, 0};
  comm::Slice slice;
  Optimizer optimizer;
  at::Tensor average = parameters.values().mul(0.5);
  at::Tensor bf16_copy;

  UpdateSubject(const TrainOptions& options, comm::Slice updated, std::int64_t copied)
      : slice(updated),
        optimizer(options, parameters, updated),
        bf16_copy(at::zeros({copied}, at::kBFloat16)) {}

  kernels::WeightUpdate update() const {
    kernels::WeightUpdate update;
    update.values = slice.of(parameters.values());
    update.learning_rate = at::scalar_tensor(0.1, at::kDouble);
    update.bf16_copy = bf16_copy;
    update.average = slice.of(average);
    update.average_weight = at::scalar_tensor(0.25, at::kDouble);
    return update;
  }
};

void take_step_by_libtorch(UpdateSubject& subject, const comm::DeferredSum& sum) {
  kernels::WeightUpdate update = subject.update();
  update.gradients = subject.slice.of(subject.parameters.gradients());
  std::vector<at::Tensor> rows;
  for (const comm::GradientRow& part : sum.rows) rows.push_back(in_f32(part));
  for (const comm::RowSum& pair : sum.order) rows[pair.to].add_(rows[pair.from]);
  update.gradients.copy_(rows.front());
  kernels::update_with_libtorch(update, subject.optimizer.rule());
  update.average.lerp_(update.values, update.average_weight.item<double>());
  subject.bf16_copy.copy_(update.values.narrow(0, 0, subject.bf16_copy.numel()));
}

TEST_CASE("the fused update matches a step composed of LibTorch's operations") {
  const at::NoGradGuard no_grad;
  const TrainOptions options = GENERATE(
      sgd(0, false, 0), sgd(0.9, false, 0.01), sgd(0.9, true, 0.05), adam(OptimizerName::kAdam, 0),
      adam(OptimizerName::kAdam, 0.1), adam(OptimizerName::kAdamW, 0.1));
  const std::int64_t all = FlatParameters(*tiny_model(1), 0).values().numel();
  const comm::Slice slice = GENERATE_COPY(comm::Slice{0, all}, comm::Slice{7, 1500});
  for (const std::size_t rows : {1, 2, 3}) {
    for (const std::int64_t bf16 : {std::int64_t{0}, std::int64_t{1025}, slice.size}) {
      CAPTURE(rows, bf16, slice.size);
      UpdateSubject expected(options, slice, bf16);
      UpdateSubject own(options, slice, bf16);
      Agreement agreement;
      for (int step = 0; step < 4; ++step) {
        const comm::DeferredSum sum = drawn_gradients(rows, slice.size, bf16, step);
        CHECK(update_on_host(own.update(), own.optimizer.rule(), sum));
        take_step_by_libtorch(expected, sum);
      }
      agreement.add("weights", own.parameters.values(), expected.parameters.values(), at::kFloat);
      agreement.add("average", own.average, expected.average, at::kFloat);
      for (std::size_t i = 0; i < own.optimizer.state().size(); ++i) {
        agreement.add("state", own.optimizer.state()[i].flat, expected.optimizer.state()[i].flat,
                      at::kFloat);
      }
      CHECK(agreement.difference() == "");
      CHECK(own.bf16_copy.equal(own.update().values.narrow(0, 0, bf16).to(at::kBFloat16)));
    }
  }
}

TEST_CASE("the fused update is bit-identical with any number of threads") {
  const at::NoGradGuard no_grad;
  constexpr std::int64_t kCount = 200'003;
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (const int number : {1, 3}) {
    at::set_num_threads(number);
    kernels::WeightUpdate update;
    update.values = at::arange(kCount, at::kFloat).cos();
    update.learning_rate = at::scalar_tensor(0.1, at::kDouble);
    CHECK(update_on_host(update, kernels::SgdRule{}, drawn_gradients(2, kCount, kCount / 2, 0)));
    results.push_back(update.values);
  }
  at::set_num_threads(threads);
  CHECK(results[0].equal(results[1]));
}

TEST_CASE("the bf16 copy is rounded as by LibTorch, including infinity and NaN") {
  const at::NoGradGuard no_grad;
  kernels::WeightUpdate update;
  update.values =
      at::cat({at::tensor({1.00390625F, 1.01171875F, -0.0F, 1e-40F, 3.4e38F, std::nanf("")}),
               at::arange(3000, at::kFloat).sin()});
  update.learning_rate = at::scalar_tensor(0.0, at::kDouble);
  update.bf16_copy = at::zeros({update.values.numel()}, at::kBFloat16);
  const at::Tensor expected = update.values.to(at::kBFloat16);
  comm::DeferredSum none;
  none.rows.push_back(row(at::zeros({update.values.numel()}), 0));
  CHECK_FALSE(update_on_host(update, kernels::SgdRule{}, none));  // one value is NaN
  CHECK(at::allclose(update.bf16_copy.to(at::kFloat), expected.to(at::kFloat), 0, 0,
                     /*equal_nan=*/true));
}

/// Returns whether a step with one broken gradient reports a finite update.
bool is_finite_with(const TrainOptions& options, std::size_t rows, std::int64_t bf16,
                    std::int64_t at, float broken) {
  const std::int64_t all = FlatParameters(*tiny_model(1), 0).values().numel();
  UpdateSubject subject(options, {0, all}, 0);
  const comm::DeferredSum sum = drawn_gradients(rows, all, bf16, 0);
  const comm::GradientRow& last = sum.rows.back();
  (at < bf16 ? last.bf16[at] : last.f32[at - bf16]).fill_(broken);
  return update_on_host(subject.update(), subject.optimizer.rule(), sum);
}

TEST_CASE("every optimizer detects a gradient that is not finite") {
  const at::NoGradGuard no_grad;
  const TrainOptions options =
      GENERATE(sgd(0, false, 0), sgd(0.9, true, 0.01), adam(OptimizerName::kAdam, 0),
               adam(OptimizerName::kAdamW, 0.1));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float broken : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const std::int64_t at : {0, 1025, 1600}) {  // bf16, in a vector, after the last vector
      for (const std::size_t rows : {1, 2, 3}) {
        CAPTURE(broken, at, rows);
        CHECK_FALSE(is_finite_with(options, rows, /*bf16=*/1300, at, broken));
      }
    }
  }
}

TEST_CASE("the EMA decay warms up from the first step, by TensorFlow's rule") {
  CHECK(average_weight(0.9999, 1) == Approx(1 - 2.0 / 11));
  CHECK(average_weight(0.9999, 1407) == Approx(1 - 1408.0 / 1417));  // after three epochs of MNIST
  CHECK(average_weight(0.99, 889) > 0.01);
  CHECK(average_weight(0.99, 890) == Approx(0.01));
  CHECK(average_weight(0.99, 1'000'000) == Approx(0.01));
  CHECK(average_weight(0.1, 1) == Approx(0.9));  // 0.1 is already below the warm-up's first value
  CHECK(average_weight(0, 1) == 1);
}

TEST_CASE("the EMA starts at the initial weights and is updated after every optimizer step") {
  TrainOptions options = small_run();
  options.ema = {0.4};
  options.gradient_accumulation_steps = GENERATE(1, 2);
  TrainerRig rig(options, one_rank(), tiny_model(1, true), {.count = 50}, at::kCPU, {}, nullptr,
                 nullptr, tiny_model(2, true));
  options.ema.reset();
  TrainerRig plain(options, one_rank(), tiny_model(1, true));
  at::Tensor expected = rig.weights();
  at::Tensor mean = rig.trainer.model().named_buffers()["norm.running_mean"].clone();
  for (std::int64_t step = 1; !rig.trainer.run_done() && step <= 6; ++step) {
    rig.run_to(step);
    plain.run_to(step);
    INFO("step " << step);
    CHECK(rig.weights().equal(plain.weights()));      // EMA does not affect the weights
    const double weight = average_weight(0.4, step);  // the warm-up lasts until step 5
    expected.lerp_(rig.weights(), weight);
    mean.lerp_(rig.trainer.model().named_buffers()["norm.running_mean"], weight);
    CHECK(at::allclose(rig.trainer.ema()->values(), expected, 1e-6, 1e-7));
    const auto buffers = rig.trainer.evaluated_model().named_buffers();
    CHECK(at::allclose(buffers["norm.running_mean"], mean, 1e-6, 1e-7));
    CHECK(buffers["norm.num_batches_tracked"].item<std::int64_t>() ==
          rig.trainer.model().named_buffers()["norm.num_batches_tracked"].item<std::int64_t>());
  }
  CHECK(plain.trainer.ema() == nullptr);
  CHECK(&plain.trainer.evaluated_model() == &plain.trainer.model());
}

TEST_CASE("in bf16 the EMA model averages the fp32 weights, in the model's layout") {
  TrainOptions options = small_run();
  options.ema = {0.5};
  const auto make = [](std::int64_t seed) {  // ResNet's batch norm stays fp32
    return built_in_model(settings::ModelName::kResNet18, seed);
  };
  const SmallImages images{.count = 8, .height = 28, .width = 28};
  TrainerRig rig(options, one_rank(), make(1), images, at::kCPU, {}, nullptr, make(2), make(3));
  const at::Tensor before = rig.weights();
  rig.run_to(1);
  CHECK(std::string(rig.trainer.precision()) == "bf16");
  const at::Tensor expected = before.lerp(rig.weights(), average_weight(0.5, 1));
  CHECK(at::allclose(rig.trainer.ema()->values(), expected, 1e-6, 1e-7));
  std::size_t index = 0;
  for (const auto& item : rig.trainer.evaluated_model().named_parameters()) {
    INFO(item.key());
    CHECK(item.value().scalar_type() == at::kFloat);
    CHECK(item.value().equal(
        rig.trainer.parameters().view_like_parameter(rig.trainer.ema()->values(), index++)));
  }
}

/// An averager that leaves gradients unchanged and owns a slice of the weights.
class PartialAverager : public comm::GradientAverager {
 public:
  PartialAverager(comm::GradientBuffer buffer, comm::Slice slice)
      : GradientAverager(std::move(buffer)), slice_(slice) {}

  void average() override {}
  comm::Slice owned_slice() const override { return slice_; }
  const char* name() const override { return "partial"; }

 private:
  comm::Slice slice_;
};

struct KernelCase {
  OptimizerName optimizer;
  bool bf16;
  std::optional<double> max_norm;
  bool averages;
  comm::Slice slice;
};

/// All tensors that an optimizer step changes.
struct Outcome {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  at::Tensor bf16_values;
};

std::shared_ptr<testing::TinyModel> model_in(bool bf16) {
  const at::NoGradGuard no_grad;
  auto model = testing::tiny_model(1, /*with_batch_norm=*/true);
  if (bf16) model->compute_in_bfloat16();
  return model;
}

at::Tensor pattern(const at::Tensor& like) {
  return at::arange(like.numel(), at::kFloat).mul(0.7).sin().abs().mul(0.01);
}

/// Takes a step with optimizer state as if after earlier steps.
Outcome outcome_of(const KernelCase& tried, const loader::Batch& batch) {
  settings::TrainOptions options;
  options.optimizer = tried.optimizer;
  options.sgd_momentum = 0.9;
  options.weight_decay = 0.01;
  options.max_gradient_norm = tried.max_norm;
  const auto master = model_in(false);
  const auto bf16_copy = tried.bf16 ? model_in(true) : nullptr;
  FlatParameters parameters(*master, StepLog::kScalars, bf16_copy.get());
  EmaModel average(*master, parameters, model_in(false));
  const comm::Communicator alone;
  const auto partition = make_batch_partition({}, alone, at::kCPU);
  PartialAverager averager(parameters.gradient_buffer(), tried.slice);
  Optimizer optimizer(options, parameters, tried.slice, tried.averages ? &average : nullptr);
  for (const OptimizerTensor& state : optimizer.state()) state.flat.copy_(pattern(state.flat));
  optimizer.restored(4);
  StepLog log(parameters.statistics(), parameters.shard_statistics(), alone, /*runs_ahead=*/false);
  Step step(options, tried.bf16 ? *bf16_copy : *master, parameters, *partition, averager, optimizer,
            log);
  step.begin(batch.size(), 1);
  step.add(batch);
  step.finish(at::tensor({0.1, 0.25}, at::kDouble));
  Outcome outcome{{{"weights", parameters.values()},
                   {"gradients", parameters.gradients()},
                   {"average", average.values()},
                   {"statistics", parameters.statistics()}},
                  parameters.bf16_values()};
  for (const OptimizerTensor& state : optimizer.state()) {
    outcome.tensors.emplace_back(state.name, state.flat);
  }
  for (const auto& item : average.model().named_buffers()) {
    outcome.tensors.emplace_back(item.key(), item.value());
  }
  return outcome;
}

void check(const KernelCase& tried) {
  CAPTURE(tried.optimizer, tried.bf16, tried.averages, tried.slice.begin);
  const loader::Batch batch{at::randn({6, 1, 16, 16}).to(tried.bf16 ? at::kBFloat16 : at::kFloat),
                            at::randint(0, 10, {6}, at::kLong)};
  const Outcome expected = outcome_of(tried, batch);
  Outcome own;
  {
    const EmulatedKernels emulated;
    own = outcome_of(tried, batch);
  }
  Agreement agreement;
  for (std::size_t i = 0; i < own.tensors.size(); ++i) {
    agreement.add(own.tensors[i].first.c_str(), own.tensors[i].second, expected.tensors[i].second,
                  at::kFloat);
  }
  CHECK(agreement.difference() == "");
  if (!tried.bf16) return;
  const std::int64_t copied = own.bf16_values.numel();
  CHECK(own.bf16_values.equal(own.tensors.front().second.narrow(0, 0, copied).to(at::kBFloat16)));
}

TEST_CASE("a step with the weight update kernel matches one composed of LibTorch's operations") {
  const std::int64_t all = FlatParameters(*model_in(false), 0).values().numel();
  const auto optimizer = GENERATE(OptimizerName::kSgd, OptimizerName::kAdam, OptimizerName::kAdamW);
  for (const comm::Slice slice :
       {comm::Slice{0, all}, comm::Slice{8, 1000}, comm::Slice{all - 24, 24}}) {
    for (const bool bf16 : {false, true}) {
      check({optimizer, bf16, {}, /*averages=*/false, slice});
      check({optimizer, bf16, 0.5, /*averages=*/true, slice});
      check({optimizer, bf16, 1e6, /*averages=*/true, slice});
    }
  }
}

}  // namespace
}  // namespace mnist_train::train
