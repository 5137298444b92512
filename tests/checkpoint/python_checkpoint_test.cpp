#include <torch/serialize.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "support/error_of.h"
#include "support/temp_folder.h"
#include "support/trainer_rig.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using settings::OptimizerName;
using settings::TrainOptions;
using namespace testing;

/// A model with batch norm's buffers and one of its own, which no optimizer updates.
std::shared_ptr<models::Model> model_with_buffer() {
  auto model = testing::tiny_model(1, /*with_batch_norm=*/true);
  model->register_buffer("scale", at::full({2}, 0.5));
  return model;
}

TrainOptions options_with(OptimizerName optimizer, double momentum) {
  TrainOptions options = testing::small_run();
  options.optimizer = optimizer;
  options.sgd_momentum = momentum;
  return options;
}

/// What `write_python_checkpoint` made of the checkpoint.
c10::impl::GenericDict exported(const TensorFile& file, const TrainOptions& options) {
  const TempFolder folder;
  write_python_checkpoint(folder.path() / "python.pt", file, options, "source");
  const std::string bytes = read_file(folder.path() / "python.pt", 1 << 24, ExitCode::kData);
  return torch::pickle_load({bytes.begin(), bytes.end()}).toGenericDict();
}

TEST_CASE("all buffers are exported to Python, and only parameters count for the optimizer") {
  struct Case {
    OptimizerName optimizer;
    double momentum;
    std::size_t states;  // parameters that have one
  };
  for (const Case& each : {Case{OptimizerName::kSgd, 0, 0}, Case{OptimizerName::kSgd, 0.9, 6},
                           Case{OptimizerName::kAdam, 0, 6}}) {
    const TrainOptions options = options_with(each.optimizer, each.momentum);
    TrainerRig rig(options, one_rank(), model_with_buffer());
    rig.run_to(2);
    const auto all = exported(snapshot(rig.trainer, {"{}", "hash", 1, 0, 0, 0, {}}), options);
    const auto model = all.at("model_state_dict").toGenericDict();
    CHECK(model.size() == 6 + 3 + 1);
    CHECK(model.at("scale").toTensor().equal(at::full({2}, 0.5)));
    CHECK(model.at("norm.num_batches_tracked").toTensor().item<std::int64_t>() == 2);
    const auto optimizer = all.at("optimizer_state_dict").toGenericDict();
    const auto group = optimizer.at("param_groups").toList().get(0).toGenericDict();
    CHECK(group.at("params").toList().size() == 6);
    CHECK(optimizer.at("state").toGenericDict().size() == each.states);
  }
}

TEST_CASE("with ema trained weights and EMA model are exported to Python") {
  TrainOptions options = options_with(OptimizerName::kSgd, 0.9);
  options.ema = {0.5};
  TrainerRig rig(options);
  rig.run_to(2);
  const auto all = exported(snapshot(rig.trainer, {"{}", "hash", 1, 0, 0, 0, {}}), options);
  const auto weight = [&](const char* state) {
    return all.at(state).toGenericDict().at("fc.weight").toTensor();
  };
  CHECK(weight("model_state_dict").equal(rig.trainer.model().named_parameters()["fc.weight"]));
  CHECK(weight("ema_state_dict")
            .equal(rig.trainer.evaluated_model().named_parameters()["fc.weight"]));
}

TEST_CASE("a checkpoint lists its buffers") {
  const TrainOptions options = options_with(OptimizerName::kSgd, 0);
  TrainerRig rig(options, one_rank(), testing::tiny_model(1, /*with_batch_norm=*/true));
  TensorFile file = snapshot(rig.trainer, {"{}", "hash", 1, 0, 0, 0, {}});
  const std::vector<std::string> names{"norm.running_mean", "norm.running_var",
                                       "norm.num_batches_tracked"};
  CHECK(checkpoint_buffers(file, "source") == names);
  std::erase_if(file.metadata,
                [](const auto& item) { return item.first == "mnist-train.buffers"; });
  for (const char* state : {"missing", "broken"}) {
    INFO(state);
    CHECK_THAT(error_of([&] { checkpoint_buffers(file, "source"); }),
               IsError(ExitCode::kCheckpoint, "source: its list of buffers cannot be read"));
    file.metadata.emplace_back("mnist-train.buffers", "{]");
  }
}

TEST_CASE("missing or unexpected optimizer state is refused in an export to Python") {
  const TempFolder folder;
  TrainerRig rig(options_with(OptimizerName::kSgd, 0.9));
  const TensorFile file = snapshot(rig.trainer, {"{}", "hash", 1, 0, 0, 0, {}});
  const auto refusal = [&](OptimizerName optimizer, double momentum) {
    const auto failure = error_of([&] {
      write_python_checkpoint(folder.path() / "python.pt", file, options_with(optimizer, momentum),
                              "source");
    });
    CHECK(failure.code == ExitCode::kCheckpoint);
    return failure.message;
  };
  CHECK_THAT(refusal(OptimizerName::kAdam, 0.9),
             ContainsSubstring("source: optimizer.exp_avg.conv.weight is missing"));
  CHECK_THAT(refusal(OptimizerName::kSgd, 0),
             ContainsSubstring("source: has more optimizer state"));
  CHECK(testing::names_in(folder.path()).empty());
}

}  // namespace
}  // namespace mnist_train::checkpoint
