#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/agreement.h"
#include "support/catch.h"
#include "support/tiny_model.h"
#include "train/optimizer.h"

namespace mnist_train::train {
namespace {

using settings::OptimizerName;

/// Gradients whose first `bf16` elements are bf16 and whose others are f32.
comm::GradientRow row(const at::Tensor& gradients, std::int64_t bf16) {
  const std::int64_t rest = gradients.numel() - bf16;
  return {bf16 == 0 ? at::Tensor() : gradients.narrow(0, 0, bf16).to(at::kBFloat16),
          gradients.narrow(0, bf16, rest).clone()};
}

at::Tensor in_f32(const comm::GradientRow& row) {
  return row.bf16.defined() ? at::cat({row.bf16.to(at::kFloat), row.f32}) : row.f32;
}

comm::GradientSum drawn_gradients(std::size_t rows, std::int64_t count, std::int64_t bf16,
                                  int step) {
  comm::GradientSum sum;
  for (std::size_t i = 0; i < rows; ++i) {
    const at::Tensor values =
        at::arange(count, at::kFloat).mul(0.7).add(step + 3.0 * static_cast<double>(i)).sin();
    sum.rows.push_back(row(values, bf16));
  }
  sum.order = comm::SummationTree::of_ranks(static_cast<int>(rows)).over_ranks();
  return sum;
}

/// Weights, an optimizer with its state, EMA model and bf16 copy.
struct UpdateSubject {
  std::shared_ptr<testing::TinyModel> model = testing::tiny_model(1);
  FlatParameters parameters{*model, 0};
  comm::Slice slice;
  std::unique_ptr<Optimizer> optimizer;
  at::Tensor average = parameters.values().mul(0.5);
  at::Tensor bf16_copy;

  UpdateSubject(const settings::TrainOptions& options, comm::Slice updated, std::int64_t copied)
      : slice(updated),
        optimizer(make_optimizer(options, parameters, updated)),
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

void take_step_by_libtorch(UpdateSubject& subject, const comm::GradientSum& sum) {
  const kernels::WeightUpdate update = subject.update();
  at::Tensor gradients = subject.slice.of(subject.parameters.gradients());
  std::vector<at::Tensor> rows;
  for (const comm::GradientRow& part : sum.rows) rows.push_back(in_f32(part));
  for (const comm::RowSum& pair : sum.order) rows[pair.to].add_(rows[pair.from]);
  gradients.copy_(rows.front());
  subject.optimizer->step(update.learning_rate);
  at::Tensor(update.average).lerp_(update.values, update.average_weight.item<double>());
  subject.bf16_copy.copy_(update.values.narrow(0, 0, subject.bf16_copy.numel()));
}

settings::TrainOptions options_of(OptimizerName optimizer, double momentum, bool nesterov,
                                  double weight_decay) {
  settings::TrainOptions options;
  options.optimizer = optimizer;
  options.sgd_momentum = momentum;
  options.nesterov = nesterov;
  options.weight_decay = weight_decay;
  return options;
}

TEST_CASE("one pass takes the step that LibTorch's operations take") {
  const at::NoGradGuard no_grad;
  const settings::TrainOptions options = GENERATE(options_of(OptimizerName::kSgd, 0, false, 0),
                                                  options_of(OptimizerName::kSgd, 0.9, false, 0.01),
                                                  options_of(OptimizerName::kSgd, 0.9, true, 0.05),
                                                  options_of(OptimizerName::kAdam, 0, false, 0),
                                                  options_of(OptimizerName::kAdam, 0, false, 0.1),
                                                  options_of(OptimizerName::kAdamW, 0, false, 0.1));
  const std::int64_t all = FlatParameters(*testing::tiny_model(1), 0).values().numel();
  const comm::Slice slice = GENERATE_COPY(comm::Slice{0, all}, comm::Slice{7, 1500});
  for (const std::size_t rows : {1, 2, 3}) {
    for (const std::int64_t bf16 : {std::int64_t{0}, std::int64_t{1025}, slice.size}) {
      CAPTURE(rows, bf16, slice.size);
      UpdateSubject expected(options, slice, bf16);
      UpdateSubject own(options, slice, bf16);
      kernels::Agreement agreement;
      for (int step = 0; step < 4; ++step) {
        const comm::GradientSum sum = drawn_gradients(rows, slice.size, bf16, step);
        CHECK(update_on_host(own.update(), own.optimizer->rule(), sum));
        take_step_by_libtorch(expected, sum);
      }
      agreement.add("weights", own.parameters.values(), expected.parameters.values(), at::kFloat);
      agreement.add("average", own.average, expected.average, at::kFloat);
      for (std::size_t i = 0; i < own.optimizer->state().size(); ++i) {
        agreement.add("state", own.optimizer->state()[i].flat, expected.optimizer->state()[i].flat,
                      at::kFloat);
      }
      CHECK(agreement.difference() == "");
      CHECK(own.bf16_copy.equal(own.update().values.narrow(0, 0, bf16).to(at::kBFloat16)));
    }
  }
}

TEST_CASE("one pass gives the same bits with any number of threads") {
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

TEST_CASE(
    "the bf16 copy is rounded as LibTorch rounds, also to infinity and where there is a NaN") {
  const at::NoGradGuard no_grad;
  kernels::WeightUpdate update;
  update.values =
      at::cat({at::tensor({1.00390625F, 1.01171875F, -0.0F, 1e-40F, 3.4e38F, std::nanf("")}),
               at::arange(3000, at::kFloat).sin()});
  update.learning_rate = at::scalar_tensor(0.0, at::kDouble);
  update.bf16_copy = at::zeros({update.values.numel()}, at::kBFloat16);
  const at::Tensor expected = update.values.to(at::kBFloat16);
  comm::GradientSum none;
  none.rows.push_back(row(at::zeros({update.values.numel()}), 0));
  CHECK_FALSE(update_on_host(update, kernels::SgdRule{}, none));  // there is a NaN
  CHECK(at::allclose(update.bf16_copy.to(at::kFloat), expected.to(at::kFloat), 0, 0,
                     /*equal_nan=*/true));
}

/// Returns the result of a step with one broken gradient.
bool is_finite_with(const settings::TrainOptions& options, std::size_t rows, std::int64_t bf16,
                    std::int64_t at, float broken) {
  const std::int64_t all = FlatParameters(*testing::tiny_model(1), 0).values().numel();
  UpdateSubject subject(options, {0, all}, 0);
  const comm::GradientSum sum = drawn_gradients(rows, all, bf16, 0);
  const comm::GradientRow& last = sum.rows.back();
  (at < bf16 ? last.bf16[at] : last.f32[at - bf16]).fill_(broken);
  return update_on_host(subject.update(), subject.optimizer->rule(), sum);
}

TEST_CASE("a gradient that is not finite is noticed by every optimizer") {
  const at::NoGradGuard no_grad;
  const settings::TrainOptions options = GENERATE(options_of(OptimizerName::kSgd, 0, false, 0),
                                                  options_of(OptimizerName::kSgd, 0.9, true, 0.01),
                                                  options_of(OptimizerName::kAdam, 0, false, 0),
                                                  options_of(OptimizerName::kAdamW, 0, false, 0.1));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float broken : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const std::int64_t at : {0, 1025, 1600}) {  // in bf16, in a vector, and after the last one
      for (const std::size_t rows : {1, 2, 3}) {
        CAPTURE(broken, at, rows);
        CHECK_FALSE(is_finite_with(options, rows, /*bf16=*/1300, at, broken));
      }
    }
  }
}

}  // namespace
}  // namespace mnist_train::train
