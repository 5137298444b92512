#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdint>

#include "support/catch.h"
#include "support/tiny_model.h"
#include "train/optimizer.h"

namespace mnist_train::train {
namespace {

using settings::OptimizerName;
using settings::TrainOptions;

TrainOptions hyperparameters(OptimizerName name, double weight_decay) {
  TrainOptions options;
  options.optimizer = name;
  options.weight_decay = weight_decay;
  options.adam_beta1 = 0.8;
  options.adam_beta2 = 0.95;
  options.adam_epsilon = 1e-6;
  return options;
}

at::Tensor gradients_of(int step, std::int64_t count) {
  return at::arange(count, at::kFloat).mul(0.7).add(step).sin();
}

/// torch.optim.Adam and AdamW as their documentation states them, in double.
class PlainAdam {
 public:
  PlainAdam(const TrainOptions& options, const at::Tensor& values)
      : options_(options),
        values_(values.to(at::kDouble).clone()),
        average_(at::zeros_like(values_)),
        square_average_(at::zeros_like(values_)) {}

  void step(const at::Tensor& gradients, double learning_rate) {
    ++steps_;
    at::Tensor g = gradients.to(at::kDouble);
    if (options_.optimizer == OptimizerName::kAdamW) {
      values_ = values_ * (1 - learning_rate * options_.weight_decay);
    } else {
      g = g + options_.weight_decay * values_;
    }
    average_ = options_.adam_beta1 * average_ + (1 - options_.adam_beta1) * g;
    square_average_ = options_.adam_beta2 * square_average_ + (1 - options_.adam_beta2) * g * g;
    const at::Tensor average = average_ / (1 - std::pow(options_.adam_beta1, steps_));
    const at::Tensor square = square_average_ / (1 - std::pow(options_.adam_beta2, steps_));
    values_ = values_ - learning_rate * average / (square.sqrt() + options_.adam_epsilon);
  }

  const at::Tensor& values() const { return values_; }

 private:
  TrainOptions options_;
  at::Tensor values_;
  at::Tensor average_;
  at::Tensor square_average_;
  int steps_ = 0;
};

TEST_CASE("Adam and AdamW follow the plain formula") {
  for (const TrainOptions& options :
       {hyperparameters(OptimizerName::kAdam, 0), hyperparameters(OptimizerName::kAdam, 0.1),
        hyperparameters(OptimizerName::kAdamW, 0), hyperparameters(OptimizerName::kAdamW, 0.1)}) {
    const auto model = testing::tiny_model(1);
    const FlatParameters parameters(*model, 0);
    const auto optimizer = make_optimizer(options, parameters);
    PlainAdam plain(options, parameters.values());
    for (int step = 0; step < 20; ++step) {
      const double learning_rate = 0.01 / (1 + step);
      parameters.gradients().copy_(gradients_of(step, parameters.values().numel()));
      optimizer->step(at::scalar_tensor(learning_rate, at::kDouble));
      plain.step(parameters.gradients(), learning_rate);
      INFO("weight decay " << options.weight_decay << ", step " << step);
      REQUIRE(at::allclose(parameters.values().to(at::kDouble), plain.values(), 1e-4, 1e-6));
    }
  }
}

TEST_CASE("Adam's weight decay is not AdamW's") {
  const auto one = testing::tiny_model(1);
  const auto other = testing::tiny_model(1);
  const FlatParameters adam_parameters(*one, 0);
  const FlatParameters adamw_parameters(*other, 0);
  const auto adam = make_optimizer(hyperparameters(OptimizerName::kAdam, 0.5), adam_parameters);
  const auto adamw = make_optimizer(hyperparameters(OptimizerName::kAdamW, 0.5), adamw_parameters);
  for (const auto* parameters : {&adam_parameters, &adamw_parameters}) {
    parameters->gradients().copy_(gradients_of(0, parameters->values().numel()));
  }
  adam->step(at::scalar_tensor(0.1, at::kDouble));
  adamw->step(at::scalar_tensor(0.1, at::kDouble));
  CHECK_FALSE(at::allclose(adam_parameters.values(), adamw_parameters.values(), 1e-3, 1e-4));
}

TEST_CASE("Adam resumes from its state as if it had not stopped") {
  const TrainOptions options = hyperparameters(OptimizerName::kAdamW, 0.1);
  const auto model = testing::tiny_model(1);
  const FlatParameters parameters(*model, 0);
  const auto optimizer = make_optimizer(options, parameters);
  const auto step = [](const FlatParameters& target, Optimizer& subject, int number) {
    target.gradients().copy_(gradients_of(number, target.values().numel()));
    subject.step(at::scalar_tensor(0.01, at::kDouble));
  };
  for (int number = 0; number < 5; ++number) step(parameters, *optimizer, number);
  const auto copy = testing::tiny_model(2);
  const FlatParameters other(*copy, 0);
  const auto resumed = make_optimizer(options, other);
  other.values().copy_(parameters.values());
  REQUIRE(resumed->state().size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(resumed->state()[i].name == (i == 0 ? "exp_avg" : "exp_avg_sq"));
    resumed->state()[i].flat.copy_(optimizer->state()[i].flat);
  }
  resumed->restored(5);
  for (int number = 5; number < 9; ++number) {
    step(parameters, *optimizer, number);
    step(other, *resumed, number);
  }
  CHECK(other.values().equal(parameters.values()));
}

}  // namespace
}  // namespace mnist_train::train
