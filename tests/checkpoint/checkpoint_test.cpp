#include "checkpoint/checkpoint.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/error_of.h"
#include "support/progress.h"
#include "support/ranks.h"
#include "support/temp_folder.h"
#include "support/trainer_rig.h"

namespace mnist_train::checkpoint {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::ordered_json;
using settings::OptimizerName;
using settings::TrainOptions;
using namespace testing;

constexpr const char* kStateKey = "mnist-train.state";
const RunFacts kFacts{R"({"epochs":3})", "xxh3-128:data", 2, {1234, 567}, 1, {3, 20, 24, 7}};

TrainOptions options_with(OptimizerName optimizer, double momentum) {
  TrainOptions options = testing::small_run();
  options.optimizer = optimizer;
  options.sgd_momentum = momentum;
  return options;
}

/// A trainer with every kind of state: momentum, buffers and an integer buffer.
TrainerRig fresh(std::int64_t seed = 1) {
  TrainOptions options = small_run();
  options.seed = seed;
  return TrainerRig(options, one_rank(), tiny_model(seed, /*with_batch_norm=*/true));
}

/// Returns the progress without measured times.
train::Progress timeless(train::Progress progress) {
  progress.train_seconds = progress.epoch_train_seconds = 0;
  return progress;
}

/// A trainer with an EMA model, and with a schedule and early stopping that depend on evaluations.
TrainerRig averaging_rig() {
  TrainOptions options = small_run();
  options.ema = {0.75};
  options.epochs = 9;
  options.early_stopping = {.patience = 4, .min_delta = 0.5};
  options.schedule.name = settings::ScheduleName::kPlateau;
  options.schedule.patience = 1;
  return TrainerRig(options, one_rank(), tiny_model(1, true), {.count = 50}, at::kCPU, {}, nullptr,
                    nullptr, tiny_model(2, true));
}

bool same_average(const TrainerRig& a, const TrainerRig& b) {
  if (a.trainer.ema() == nullptr) return b.trainer.ema() == nullptr;
  return std::ranges::equal(
      state_dict(a.trainer.ema()->model()), state_dict(b.trainer.ema()->model()),
      [](const auto& one, const auto& other) { return one.second.equal(other.second); });
}

bool same_state(const TrainerRig& a, const TrainerRig& b) {
  return same_tensors(a, b) && same_average(a, b) &&
         same_progress(timeless(a.trainer.progress()), timeless(b.trainer.progress()));
}

TensorFile through_file(const TensorFile& file) {
  const TempFolder folder;
  write_safetensors(folder.path() / "checkpoint", file, /*seal=*/true);
  return read_checkpoint(folder.path() / "checkpoint");
}

/// Returns the checkpoint with `edit` applied to its JSON state.
template <class Edit>
TensorFile edited(TensorFile file, const Edit& edit) {
  for (auto& [name, text] : file.metadata) {
    if (name != kStateKey) continue;
    Json state = Json::parse(text);
    edit(state);
    text = state.dump();
  }
  return file;
}

TensorFile without_tensor(TensorFile file, const std::string& name) {
  std::erase_if(file.tensors, [&](const auto& item) { return item.first == name; });
  return file;
}

TEST_CASE("a run resumed at any step ends in a bit-identical state") {
  const auto& [make_rig, last, ended_by] =
      GENERATE(table<TrainerRig (*)(), std::int64_t, const char*>(
          {{[] { return fresh(); }, 9, "epochs"}, {averaging_rig, 15, "early_stopping"}}));
  TrainerRig whole = make_rig();
  whole.run_to(100);
  CHECK(std::string(whole.trainer.ended_by()) == ended_by);
  REQUIRE(whole.trainer.progress().step == last);
  for (std::int64_t step = 0; step <= last; ++step) {  // epochs end at steps 3, 6, 9 …
    TrainerRig first = make_rig();
    first.run_to(step);
    TrainerRig second = make_rig();
    second.run_to(2);  // these steps must not affect the restored state
    restore(second.trainer, through_file(snapshot(first.trainer, kFacts)), "file");
    INFO("resumed at step " << step);
    REQUIRE(same_state(first, second));
    second.run_to(100);
    CHECK(same_state(whole, second));
  }
}

TEST_CASE("the facts about the run survive a round trip") {
  TrainerRig rig = fresh();
  RunFacts written = kFacts;
  written.class_names = {"cat", "dog"};  // only some data sets have names
  const TensorFile file = through_file(snapshot(rig.trainer, written));
  const auto all = [](const RunFacts& of) {
    return std::tie(of.config, of.data_hash, of.world_size, of.positions.metrics_bytes,
                    of.positions.event_bytes, of.restarts, of.images.channels, of.images.height,
                    of.images.width, of.images.classes, of.class_names);
  };
  CHECK((all(checkpoint_facts(file, "file")) == all(written)));
  CHECK(is_checkpoint(file));
}

TEST_CASE("tensors have PyTorch's names and shapes, so other programs can read them") {
  TrainerRig rig = fresh();
  const TensorFile file = snapshot(rig.trainer, kFacts);
  CHECK(file.tensors.size() == 9 + 6);
  REQUIRE(find_named(file.tensors, "model.conv.weight") != nullptr);
  REQUIRE(find_named(file.tensors, "optimizer.momentum_buffer.conv.weight") != nullptr);
  CHECK(find_named(file.tensors, "optimizer.momentum_buffer.conv.weight")->sizes().vec() ==
        std::vector<std::int64_t>{3, 1, 5, 5});
  CHECK(find_named(file.tensors, "model.norm.num_batches_tracked")->scalar_type() == at::kLong);
  const NamedTensors weights = checkpoint_weights(file);
  CHECK(weights.size() == 9);
  CHECK(weights.front().first == "conv.weight");
}

TEST_CASE("every tensor and every fact missing from a checkpoint is detected") {
  TrainerRig rig = fresh();
  rig.run_to(4);
  const TensorFile whole = snapshot(rig.trainer, kFacts);
  TrainerRig target = fresh(/*seed=*/2);
  target.run_to(1);
  TrainerRig untouched = fresh(/*seed=*/2);
  untouched.run_to(1);
  const auto refuses = [&](const TensorFile& file) {
    const Failure failure = error_of([&] { restore(target.trainer, file, "the/file"); });
    CHECK_THAT(failure, IsError(ExitCode::kCheckpoint, "the/file"));
    CHECK(same_state(target, untouched));
    return failure.message;
  };
  for (const auto& [name, tensor] : whole.tensors) {
    INFO(name);
    CHECK_THAT(refuses(without_tensor(whole, name)), ContainsSubstring("missing: " + name));
  }
  const Json state = Json::parse(whole.metadata.at(kStateKey));
  for (const auto& [name, value] : state.items()) {
    INFO(name);
    refuses(edited(whole, [key = name](Json& json) { json.erase(key); }));
  }
  refuses({whole.tensors, {}});
}

TEST_CASE("a checkpoint that does not fit is refused and leaves the trainer unchanged") {
  TrainerRig rig = fresh();
  rig.run_to(4);
  const TensorFile whole = snapshot(rig.trainer, kFacts);
  TrainerRig target = fresh(/*seed=*/2);
  TrainerRig untouched = fresh(/*seed=*/2);
  using Extra = std::pair<std::string, std::vector<std::int64_t>>;
  const auto with_tensors = [](TensorFile file, const std::vector<Extra>& extras) {
    for (const auto& [name, sizes] : extras) file.tensors.emplace_back(name, at::zeros(sizes));
    return file;
  };
  const Extra optimizer{"optimizer.exp_avg.conv.weight", {3, 1, 5, 5}};
  const Extra model{"model.conv9.weight", {2}};
  const std::string bias = "optimizer.momentum_buffer.fc.bias";
  const auto with = [&](const char* key, const Json& value) {
    return edited(whole, [&](Json& json) { json[key] = value; });
  };
  struct Case {
    TensorFile file;
    const char* reason;
  };
  const std::vector<Case> cases{
      {with_tensors(whole, {optimizer}), "unexpected: optimizer.exp_avg.conv.weight"},
      {with_tensors(whole, {model}), "unexpected: model.conv9.weight"},
      {with_tensors(whole, {{"other.conv.weight", {3}}}), "unexpected: other.conv.weight [3]"},
      {with_tensors(whole, {{"ema.conv.weight", {3}}}),
       "does not fit this run:\n  unexpected: ema.conv.weight [3]"},
      {with_tensors(without_tensor(whole, bias), {{bias, {11}}}),
       "size mismatch: optimizer.momentum_buffer.fc.bias is [11], expected [10]"},
      {with_tensors(whole, {optimizer, model}),
       "unexpected: optimizer.exp_avg.conv.weight [3, 1, 5, 5]\n  unexpected: model.conv9.weight "
       "[2]"},
      {with("version", 1), "not a checkpoint that this version"},
      {with("version", "1"), "not a checkpoint that this version"},
      {with("version", nullptr), "not a checkpoint that this version"},
      {with("progress", 3), "the/file"},
      {with("world_size", "two"), "the/file"},
      {with("metrics_bytes", Json::array()), "the/file"},
      {with("images", {{"channels", 1}}), "the/file"},
      {with("images", {{"channels", 1}, {"height", 28}, {"width", 1e9}, {"classes", 10}}),
       "width is 1000000000, expected 1 to"},
      {with("images", {{"channels", 1}, {"height", 28}, {"width", 28}, {"classes", 0}}),
       "classes is 0, expected 1 to"},
  };
  for (const Case& bad : cases) {
    INFO(bad.reason);
    CHECK_THAT(error_of([&] { restore(target.trainer, bad.file, "the/file"); }),
               IsError(ExitCode::kCheckpoint, bad.reason));
    CHECK(same_state(target, untouched));
  }
}

TEST_CASE("a run with ema does not resume without an EMA model") {
  TrainerRig plain = fresh();
  TrainerRig rig = averaging_rig();
  CHECK_THAT(
      error_of([&] { restore(rig.trainer, snapshot(plain.trainer, kFacts), "file"); }).message,
      ContainsSubstring("missing: ema.conv.weight"));
  const TensorFile partial = without_tensor(snapshot(rig.trainer, kFacts), "ema.norm.running_var");
  CHECK_THAT(error_of([&] { restore(rig.trainer, partial, "file"); }).message,
             ContainsSubstring("missing: ema.norm.running_var [3]"));
}

/// Returns a checkpoint whose config names the optimizer of `rig`.
TensorFile checkpoint_with(const TrainerRig& rig) {
  RunFacts facts = kFacts;
  facts.config = Json{{"optimizer", rig.trainer.optimizer().name()}}.dump();
  return snapshot(rig.trainer, facts);
}

TEST_CASE("the state of another optimizer is refused, even if its tensors have the same names") {
  const auto rig_with = [](OptimizerName optimizer) {
    return TrainerRig(options_with(optimizer, 0.9));
  };
  struct Case {
    OptimizerName saved, configured;
    std::vector<const char*> reasons;
  };
  for (const Case& bad :
       {Case{OptimizerName::kAdam,
             OptimizerName::kAdamW,
             {"its optimizer is \"adam\", but this run uses \"adamw\""}},
        Case{OptimizerName::kAdamW,
             OptimizerName::kAdam,
             {"its optimizer is \"adamw\", but this run uses \"adam\""}},
        Case{OptimizerName::kSgd,
             OptimizerName::kAdam,
             {"its optimizer is \"sgd\", but this run uses \"adam\"",
              "missing: optimizer.exp_avg.conv.weight [3, 1, 5, 5]",
              "missing: optimizer.exp_avg_sq.conv.weight [3, 1, 5, 5]",
              "unexpected: optimizer.momentum_buffer.conv.weight [3, 1, 5, 5]"}}}) {
    TrainerRig source = rig_with(bad.saved);
    source.run_to(2);
    TrainerRig target = rig_with(bad.configured);
    const at::Tensor before = target.weights();
    const Failure failure =
        error_of([&] { restore(target.trainer, checkpoint_with(source), "the/file"); });
    CHECK_THAT(failure, IsError(ExitCode::kCheckpoint,
                                "the/file: does not fit this run:", "use model.weights"));
    for (const char* reason : bad.reasons) CHECK_THAT(failure.message, ContainsSubstring(reason));
    CHECK(target.weights().equal(before));
    CHECK(target.trainer.progress().step == 0);
  }
}

TEST_CASE("a file without a seal or state is not a checkpoint") {
  const TempFolder folder;
  TrainerRig rig = fresh();
  const fs::path path = folder.path() / "unsealed";
  write_safetensors(path, snapshot(rig.trainer, kFacts), /*seal=*/false);
  CHECK_THAT(error_of([&] { read_checkpoint(path); }).message, ContainsSubstring("has no seal"));
  write_safetensors(path, {state_dict(rig.trainer.model()), {}}, /*seal=*/true);
  CHECK_THAT(error_of([&] { read_checkpoint(path); }).message,
             ContainsSubstring("not a checkpoint that this version"));
}

TEST_CASE("broadcast_state gives every rank the state of rank 0") {
  // Rank 0 resumes at step 4; the other ranks are fresh and have different seeds.
  TrainOptions options = small_run();
  if (GENERATE(false, true)) options.ema = {0.5};
  const auto rig_of = [&](const comm::Communicator& communicator) {
    const auto model = [&] {
      return tiny_model(1 + communicator.rank(), /*with_batch_norm=*/true);
    };
    return TrainerRig(options, communicator, model(), {.count = 50}, at::kCPU, {}, nullptr, nullptr,
                      options.ema ? model() : nullptr);
  };
  TrainerRig rank_0 = rig_of(one_rank());
  rank_0.run_to(4);
  const TensorFile file = snapshot(rank_0.trainer, kFacts);
  const auto same = results_of_ranks(3, [&](comm::Communicator& communicator) -> char {
    TrainerRig rig = rig_of(communicator);
    if (communicator.rank() == 0) restore(rig.trainer, file, "file");
    broadcast_state(rig.trainer, communicator);
    return same_tensors(rig, rank_0) && same_average(rig, rank_0) &&
           same_progress(rig.trainer.progress(), rank_0.trainer.progress());
  });
  CHECK(same == std::vector<char>(3, 1));
}

train::Progress through_text(const train::Progress& progress) {
  return progress_from_json(nlohmann::json::parse(progress_to_json(progress).dump()));
}

TEST_CASE("progress is bit-identical after a round trip through JSON") {
  train::Progress progress;
  CHECK(same_progress(through_text(progress), progress));
  progress.epoch = 3;
  progress.samples_into_epoch = 12345;
  progress.step = (std::int64_t{1} << 53) - 1;
  progress.samples_seen = INT64_MAX;
  progress.epoch_sums = {1.0 / 3, 17, 20, 0};
  progress.epoch_train_seconds = 0.1 + 0.2;
  progress.train_seconds = std::numeric_limits<double>::min();
  progress.test_seconds = 1e300;
  progress.accuracies = {0.1, 2.0 / 3, std::nextafter(1.0, 0.0)};
  progress.best_accuracy = 0.97;
  progress.highest_accuracy = 0.98;
  progress.best_score = -1.0 / 7;
  progress.best_step = 900;
  progress.best_test_accuracy = 0.1 + 0.7;
  progress.best_epoch = 2;
  progress.plateau = {2.0 / 7, 3, 4};
  progress.early_stopping = {5.0 / 7, 2};
  CHECK(same_progress(through_text(progress), progress));
}

void check_refused(const nlohmann::json& json) {
  INFO(json.dump());
  CHECK_THROWS_AS(progress_from_json(json), nlohmann::json::exception);
}

TEST_CASE("progress with a missing or invalid member is refused") {
  const nlohmann::json whole = progress_to_json({});
  CHECK(whole.size() == 15);
  for (const auto& [name, value] : whole.items()) {
    nlohmann::json changed = whole;
    changed.erase(name);
    check_refused(changed);
    for (const nlohmann::json& broken : {nlohmann::json("text"), nlohmann::json(nullptr)}) {
      changed = whole;
      changed[name] = broken;
      check_refused(changed);
    }
    if (!value.is_object()) continue;
    for (const auto& [member, ignored] : value.items()) {
      changed = whole;
      changed[name].erase(member);
      check_refused(changed);
      changed[name][member] = "text";
      check_refused(changed);
    }
  }
}

TEST_CASE("every member of the progress is read") {
  const nlohmann::json whole = progress_to_json({}).flatten();
  for (const auto& [path, value] : whole.items()) {
    INFO(path);
    nlohmann::json changed = progress_to_json({});
    changed[nlohmann::json::json_pointer(path)] =
        path == "/accuracies" ? nlohmann::json::array({0.5}) : nlohmann::json(7);
    CHECK_FALSE(same_progress(progress_from_json(changed), {}));
  }
}

}  // namespace
}  // namespace mnist_train::checkpoint
