#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/tiny_model.h"
#include "support/trainer_rig.h"
#include "train/optimizer.h"

namespace mnist_train::train {
namespace {

using settings::TrainOptions;
using testing::Approx;
using testing::one_rank;
using testing::small_run;
using testing::tiny_model;
using testing::TrainerRig;

at::Tensor weight_of(double weight) { return at::scalar_tensor(weight, at::kDouble); }

/// A model, its flat parameters, and its EMA model.
struct EmaSubject {
  EmaSubject()
      : model(tiny_model(1, /*with_batch_norm=*/true)),
        parameters(*model, /*statistics=*/0),
        average(*model, parameters, tiny_model(2, /*with_batch_norm=*/true)) {}

  /// Sets every weight and every element of the buffers.
  void set(double value) {
    const at::NoGradGuard no_grad;
    parameters.values().fill_(value);
    for (at::Tensor buffer : model->buffers()) buffer.fill_(value);
  }

  std::shared_ptr<models::Model> model;
  FlatParameters parameters;
  EmaModel average;
};

bool all_are(const at::Tensor& tensor, double value) {
  return (tensor - value).abs().max().item<double>() < 1e-6;
}

TEST_CASE("the decay warms up by TensorFlow's rule, from the first step on") {
  CHECK(average_weight(0.9999, 1) == Approx(1 - 2.0 / 11));
  CHECK(average_weight(0.9999, 1407) == Approx(1 - 1408.0 / 1417));  // three epochs of MNIST
  CHECK(average_weight(0.99, 889) > 0.01);
  CHECK(average_weight(0.99, 890) == Approx(0.01));
  CHECK(average_weight(0.99, 1'000'000) == Approx(0.01));
  CHECK(average_weight(0.1, 1) == Approx(0.9));  // lower than the warm-up's from the beginning
  CHECK(average_weight(0, 1) == 1);
}

TEST_CASE("the distance to weights that stay shrinks by the decay in every step") {
  const double decay = GENERATE(0.0, 0.5, 0.999);
  EmaSubject subject;
  subject.set(0);
  subject.average.restart();
  subject.set(1);
  for (int step = 1; step <= 20; ++step) {
    subject.average.update({0, subject.parameters.values().numel()}, weight_of(1 - decay));
    const double expected = 1 - std::pow(decay, step);
    CHECK(all_are(subject.average.values(), expected));
    const auto buffers = subject.average.model().named_buffers();
    CHECK(all_are(buffers["norm.running_mean"], expected));
    CHECK(all_are(buffers["norm.running_var"], expected));
    CHECK(buffers["norm.num_batches_tracked"].item<std::int64_t>() == 1);
  }
  for (const auto& item : subject.average.model().named_parameters()) {
    INFO(item.key());
    CHECK(all_are(item.value(), 1 - std::pow(decay, 20)));
  }
}

TEST_CASE("only the owned shard is updated") {
  EmaSubject subject;
  subject.set(0);
  subject.average.restart();
  subject.set(1);
  subject.average.update({64, 128}, weight_of(0.5));
  const at::Tensor& values = subject.average.values();
  CHECK(all_are(values.narrow(0, 0, 64), 0));
  CHECK(all_are(values.narrow(0, 64, 128), 0.5));
  CHECK(all_are(values.narrow(0, 192, values.numel() - 192), 0));
}

TEST_CASE("a trainer averages its weights after every optimizer step, from the initial ones on") {
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
    CHECK(rig.weights().equal(plain.weights()));      // which the average does not change
    const double weight = average_weight(0.4, step);  // the warm-up lasts until step 5
    expected.lerp_(rig.weights(), weight);
    mean.lerp_(rig.trainer.model().named_buffers()["norm.running_mean"], weight);
    CHECK(at::allclose(rig.trainer.average()->values(), expected, 1e-6, 1e-7));
    const auto buffers = rig.trainer.evaluated_model().named_buffers();
    CHECK(at::allclose(buffers["norm.running_mean"], mean, 1e-6, 1e-7));
    CHECK(buffers["norm.num_batches_tracked"].item<std::int64_t>() ==
          rig.trainer.model().named_buffers()["norm.num_batches_tracked"].item<std::int64_t>());
  }
  CHECK(plain.trainer.average() == nullptr);
  CHECK(&plain.trainer.evaluated_model() == &plain.trainer.model());
}

TEST_CASE("in bf16 the fp32 weights are averaged, in the layout of the model") {
  TrainOptions options = small_run();
  options.ema = {0.5};
  settings::ModelOptions resnet;
  resnet.name = settings::ModelName::kResNet18;  // its batch norm stays fp32
  const auto make = [&](std::int64_t seed) { return models::make_model(resnet, {}, seed); };
  const testing::SmallImages images{.count = 8, .height = 28, .width = 28};
  TrainerRig rig(options, one_rank(), make(1), images, at::kCPU, {}, nullptr, make(2), make(3));
  const at::Tensor before = rig.weights();
  rig.run_to(1);
  CHECK(std::string(rig.trainer.precision()) == "bf16");
  const at::Tensor expected = before.lerp(rig.weights(), average_weight(0.5, 1));
  CHECK(at::allclose(rig.trainer.average()->values(), expected, 1e-6, 1e-7));
  std::size_t index = 0;
  for (const auto& item : rig.trainer.evaluated_model().named_parameters()) {
    INFO(item.key());
    CHECK(item.value().scalar_type() == at::kFloat);
    CHECK(item.value().equal(
        rig.trainer.parameters().view_like_parameter(rig.trainer.average()->values(), index++)));
  }
}

TEST_CASE("the average starts from weights that the trainer is given before its first step") {
  TrainOptions options = small_run();
  options.ema = {0.5};
  TrainerRig rig(options);
  rig.trainer.parameters().values().fill_(0.25);
  rig.trainer.begin_epoch();
  CHECK(all_are(rig.trainer.average()->values(), 0.25));
}

}  // namespace
}  // namespace mnist_train::train
