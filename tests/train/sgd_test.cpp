#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/catch.h"
#include "support/error_of.h"
#include "support/tiny_model.h"
#include "train/optimizer.h"

namespace mnist_train::train {
namespace {

using settings::TrainOptions;
using testing::error_of;

TrainOptions hyperparameters(double momentum, bool nesterov, double weight_decay) {
  TrainOptions options;
  options.sgd_momentum = momentum;
  options.nesterov = nesterov;
  options.weight_decay = weight_decay;
  return options;
}

/// torch.optim.SGD as its documentation states it, in double, element by element.
class PlainSgd {
 public:
  PlainSgd(const TrainOptions& options, const at::Tensor& values) : options_(options) {
    const at::Tensor start = values.to(at::kDouble);
    values_.assign(start.const_data_ptr<double>(), start.const_data_ptr<double>() + start.numel());
    buffer_.resize(values_.size());
  }

  void step(const at::Tensor& gradients, double learning_rate) {
    const at::Tensor doubles = gradients.to(at::kDouble);
    const auto* gradient = doubles.const_data_ptr<double>();
    for (std::size_t i = 0; i < values_.size(); ++i) {
      double g = gradient[i] + options_.weight_decay * values_[i];
      if (options_.sgd_momentum != 0) {
        buffer_[i] = first_ ? g : options_.sgd_momentum * buffer_[i] + g;
        g = options_.nesterov ? g + options_.sgd_momentum * buffer_[i] : buffer_[i];
      }
      values_[i] -= learning_rate * g;
    }
    first_ = false;
  }

  at::Tensor values() const { return at::tensor(values_, at::kDouble); }

 private:
  TrainOptions options_;
  std::vector<double> values_;
  std::vector<double> buffer_;
  bool first_ = true;
};

/// Gradients of step `step`: never the same, never all of one sign.
at::Tensor gradients_of(int step, std::int64_t count) {
  return at::arange(count, at::kFloat).mul(0.7).add(step).sin();
}

TEST_CASE("SGD follows the plain formula for every setting") {
  for (const TrainOptions& options :
       {hyperparameters(0, false, 0), hyperparameters(0, false, 0.1),
        hyperparameters(0.9, false, 0), hyperparameters(0.5, false, 0.01),
        hyperparameters(0.9, true, 0), hyperparameters(0.9, true, 0.05)}) {
    const auto model = testing::tiny_model(1);
    const FlatParameters parameters(*model, 0);
    const auto optimizer = make_optimizer(options, parameters);
    PlainSgd plain(options, parameters.values());
    for (int step = 0; step < 30; ++step) {
      const double learning_rate = 0.1 / (1 + step);  // changes between steps
      parameters.gradients().copy_(gradients_of(step, parameters.values().numel()));
      optimizer->step(at::scalar_tensor(learning_rate, at::kDouble));
      plain.step(parameters.gradients(), learning_rate);
      INFO("momentum " << options.sgd_momentum << ", step " << step);
      REQUIRE(at::allclose(parameters.values().to(at::kDouble), plain.values(), 1e-5, 1e-6));
    }
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
  make_optimizer(hyperparameters(0.9, false, 0), parameters)
      ->step(at::scalar_tensor(0.5, at::kDouble));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CHECK(at::allclose(parameters.parameters()[i], expected[i], 1e-6, 1e-7));
  }
}

TEST_CASE("a step reads the gradients and leaves them as they are") {
  const auto model = testing::tiny_model(1);
  const FlatParameters parameters(*model, 0);
  const auto optimizer = make_optimizer(hyperparameters(0.9, true, 0.1), parameters);
  const at::Tensor gradients = gradients_of(3, parameters.values().numel());
  parameters.gradients().copy_(gradients);
  optimizer->step(at::scalar_tensor(0.1, at::kDouble));
  optimizer->step(at::scalar_tensor(0.1, at::kDouble));
  CHECK(parameters.gradients().equal(gradients));
}

TEST_CASE("momentum is the state, by PyTorch's name; without momentum there is none") {
  const auto model = testing::tiny_model(1);
  const FlatParameters parameters(*model, 0);
  CHECK(make_optimizer(hyperparameters(0, false, 0), parameters)->state().empty());
  const auto optimizer = make_optimizer(hyperparameters(0.9, false, 0), parameters);
  parameters.gradients().copy_(gradients_of(0, parameters.values().numel()));
  optimizer->step(at::scalar_tensor(0.1, at::kDouble));
  const auto state = optimizer->state();
  REQUIRE(state.size() == 1);
  CHECK(state[0].name == "momentum_buffer");
  CHECK(state[0].flat.equal(parameters.gradients()));
}

TEST_CASE("an optimizer that gets its state back continues as if it had never stopped") {
  for (const bool nesterov : {false, true}) {
    const TrainOptions options = hyperparameters(0.9, nesterov, 0.01);
    const auto model = testing::tiny_model(1);
    const FlatParameters parameters(*model, 0);
    const auto other_model = testing::tiny_model(2);
    const FlatParameters other(*other_model, 0);
    const auto optimizer = make_optimizer(options, parameters);
    const auto step = [](const FlatParameters& target, Optimizer& by, int number) {
      target.gradients().copy_(gradients_of(number, target.values().numel()));
      by.step(at::scalar_tensor(0.1, at::kDouble));
    };
    for (int number = 0; number < 5; ++number) step(parameters, *optimizer, number);
    const auto resumed = make_optimizer(options, other);
    other.values().copy_(parameters.values());
    resumed->state()[0].flat.copy_(optimizer->state()[0].flat);
    resumed->restored(5);
    for (int number = 5; number < 9; ++number) {
      step(parameters, *optimizer, number);
      step(other, *resumed, number);
    }
    CHECK(other.values().equal(parameters.values()));
    CHECK(resumed->state()[0].flat.equal(optimizer->state()[0].flat));
  }
}

}  // namespace
}  // namespace mnist_train::train
