#include "train/optimizer.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/tiny_model.h"

namespace mnist_train::train {
namespace {

using settings::OptimizerName;
using settings::TrainOptions;

TrainOptions sgd(double momentum, bool nesterov, double weight_decay) {
  TrainOptions options;
  options.sgd_momentum = momentum;
  options.nesterov = nesterov;
  options.weight_decay = weight_decay;
  return options;
}

TrainOptions adam(OptimizerName name, double weight_decay) {
  TrainOptions options;
  options.optimizer = name;
  options.weight_decay = weight_decay;
  options.adam_beta1 = 0.8;
  options.adam_beta2 = 0.95;
  options.adam_epsilon = 1e-6;
  return options;
}

/// torch.optim.SGD, Adam and AdamW as their documentation states them, in double.
class PlainOptimizer {
 public:
  PlainOptimizer(const TrainOptions& options, const at::Tensor& values)
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
    values_ = values_ -
              learning_rate * (options_.optimizer == OptimizerName::kSgd ? by_sgd(g) : by_adam(g));
  }

  const at::Tensor& values() const { return values_; }

 private:
  at::Tensor by_sgd(const at::Tensor& g) {
    const double momentum = options_.sgd_momentum;
    if (momentum == 0) return g;
    average_ = steps_ == 1 ? g : momentum * average_ + g;
    return options_.nesterov ? g + momentum * average_ : average_;
  }
  at::Tensor by_adam(const at::Tensor& g) {
    average_ = options_.adam_beta1 * average_ + (1 - options_.adam_beta1) * g;
    square_average_ = options_.adam_beta2 * square_average_ + (1 - options_.adam_beta2) * g * g;
    const at::Tensor average = average_ / (1 - std::pow(options_.adam_beta1, steps_));
    const at::Tensor square = square_average_ / (1 - std::pow(options_.adam_beta2, steps_));
    return average / (square.sqrt() + options_.adam_epsilon);
  }

  TrainOptions options_;
  at::Tensor values_;
  at::Tensor average_;  // SGD: the momentum buffer
  at::Tensor square_average_;
  int steps_ = 0;
};

/// Gradients of step `step`: never the same, never all of one sign.
at::Tensor gradients_of(int step, std::int64_t count) {
  return at::arange(count, at::kFloat).mul(0.7).add(step).sin();
}

void take_step(const FlatParameters& parameters, Optimizer& optimizer, int number,
               double learning_rate) {
  parameters.gradients().copy_(gradients_of(number, parameters.values().numel()));
  optimizer.step(at::scalar_tensor(learning_rate, at::kDouble));
}

TEST_CASE("every optimizer follows the plain formula for every setting") {
  for (const TrainOptions& options :
       {sgd(0, false, 0), sgd(0, false, 0.1), sgd(0.9, false, 0), sgd(0.5, false, 0.01),
        sgd(0.9, true, 0), sgd(0.9, true, 0.05), adam(OptimizerName::kAdam, 0),
        adam(OptimizerName::kAdam, 0.1), adam(OptimizerName::kAdamW, 0),
        adam(OptimizerName::kAdamW, 0.1)}) {
    const bool is_sgd = options.optimizer == OptimizerName::kSgd;
    const auto model = testing::tiny_model(1);
    const FlatParameters parameters(*model, 0);
    const auto optimizer = make_optimizer(options, parameters);
    PlainOptimizer plain(options, parameters.values());
    for (int step = 0; step < 30; ++step) {
      const double learning_rate = (is_sgd ? 0.1 : 0.01) / (1 + step);  // changes between steps
      take_step(parameters, *optimizer, step, learning_rate);
      plain.step(parameters.gradients(), learning_rate);
      INFO(optimizer->name() << ", momentum " << options.sgd_momentum << ", step " << step);
      REQUIRE(at::allclose(parameters.values().to(at::kDouble), plain.values(),
                           is_sgd ? 1e-5 : 1e-4, 1e-6));
    }
    CHECK(parameters.gradients().equal(gradients_of(29, parameters.values().numel())));
  }
}

TEST_CASE("each parameter moves by its own gradient, whatever its strides") {
  const auto model = testing::tiny_model(1);
  const FlatParameters parameters(*model, 0);
  std::vector<at::Tensor> expected;
  for (std::size_t i = 0; i < parameters.parameters().size(); ++i) {
    const at::Tensor& parameter = parameters.parameters()[i];
    const at::Tensor gradient = gradients_of(0, parameter.numel()).reshape(parameter.sizes());
    parameters.view_like_parameter(parameters.gradients(), i).copy_(gradient);
    expected.push_back(parameter.detach() - 0.5 * gradient);
  }
  make_optimizer(sgd(0.9, false, 0), parameters)->step(at::scalar_tensor(0.5, at::kDouble));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(at::allclose(parameters.parameters()[i], expected[i], 1e-6, 1e-7));
  }
}

TEST_CASE("an optimizer resumes from its state, by PyTorch's names, as if it had not stopped") {
  struct Case {
    TrainOptions options;
    std::vector<std::string> names;
  };
  for (const auto& [options, names] :
       {Case{sgd(0, false, 0.1), {}}, Case{sgd(0.9, false, 0.01), {"momentum_buffer"}},
        Case{sgd(0.9, true, 0.01), {"momentum_buffer"}},
        Case{adam(OptimizerName::kAdam, 0.1), {"exp_avg", "exp_avg_sq"}},
        Case{adam(OptimizerName::kAdamW, 0.1), {"exp_avg", "exp_avg_sq"}}}) {
    const auto model = testing::tiny_model(1);
    const FlatParameters parameters(*model, 0);
    const auto optimizer = make_optimizer(options, parameters);
    for (int number = 0; number < 5; ++number) take_step(parameters, *optimizer, number, 0.05);
    const auto other_model = testing::tiny_model(2);
    const FlatParameters other(*other_model, 0);
    const auto resumed = make_optimizer(options, other);
    other.values().copy_(parameters.values());
    REQUIRE(resumed->state().size() == names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      CHECK(resumed->state()[i].name == names[i]);
      resumed->state()[i].flat.copy_(optimizer->state()[i].flat);
    }
    resumed->restored(5);
    for (int number = 5; number < 9; ++number) {
      take_step(parameters, *optimizer, number, 0.05);
      take_step(other, *resumed, number, 0.05);
    }
    CHECK(other.values().equal(parameters.values()));
    for (std::size_t i = 0; i < names.size(); ++i) {
      CHECK(resumed->state()[i].flat.equal(optimizer->state()[i].flat));
    }
  }
}

}  // namespace
}  // namespace mnist_train::train
