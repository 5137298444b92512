#include <cmath>

#include "models/batch_norm.h"
#include "models/model.h"
#include "support/catch.h"
#include "support/trainer_rig.h"

namespace mnist_train::train {
namespace {

using namespace testing;
using settings::ModelName;

/// A trainer of one of the shipped models that computes in bf16 or fp32.
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

TEST_CASE("training in bf16 stays near training in fp32, and weights stay fp32") {
  const auto name = GENERATE(ModelName::kNet, ModelName::kMlp, ModelName::kLeNet);
  Subject fp32(name, false);
  Subject bf16(name, true);
  CHECK(std::string(fp32.trainer.precision()) == "fp32");
  CHECK(std::string(bf16.trainer.precision()) == "bf16");
  for (int i = 0; i < 3; ++i) {
    const double exact = fp32.step();
    const double rounded = bf16.step();
    CHECK(rounded != exact);
    CHECK(std::abs(rounded - exact) < 0.02 * exact);
  }
  for (const auto& item : bf16.trainer.model().named_parameters()) {
    CHECK(item.value().scalar_type() == at::kFloat);
  }
  const at::Tensor& values = bf16.trainer.parameters().values();
  CHECK_FALSE(at::equal(values, values.to(at::kBFloat16).to(at::kFloat)));  // more than bf16 holds
}

TEST_CASE("updates too small for bf16 add up in the fp32 weights") {
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
  CHECK(buffers["1.running_mean"].abs().sum().item<double>() > 0);  // the computing model's, too
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

TEST_CASE("a refreshed bf16 model computes with the restored weights") {
  Subject subject(ModelName::kNet, true);
  const double first = subject.step();
  Subject other(ModelName::kNet, true);
  other.trainer.parameters().values().zero_();  // as a checkpoint would, unseen by the model
  CHECK(other.step() == Approx(std::log(10.0)).epsilon(1e-3));
  CHECK(first != Approx(std::log(10.0)).epsilon(1e-3));
}

}  // namespace
}  // namespace mnist_train::train
