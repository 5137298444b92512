#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "support/catch.h"
#include "support/error_of.h"
#include "support/progress.h"
#include "support/ranks.h"
#include "support/trainer_rig.h"

namespace mnist_train::checkpoint {
namespace {

using testing::error_of;
using testing::one_rank;
using testing::same_progress;
using testing::small_run;
using testing::tiny_model;
using testing::TrainerRig;

/// Everything that ranks must agree on.
struct TrainingState {
  at::Tensor weights;
  at::Tensor momentum;
  std::vector<at::Tensor> buffers;
  train::Progress progress;
};

TrainingState state_of(const TrainerRig& rig) {
  TrainingState state{rig.weights(),
                      rig.trainer.optimizer().state().at(0).flat.clone(),
                      {},
                      rig.trainer.progress()};
  for (const at::Tensor& buffer : rig.trainer.model().buffers()) {
    state.buffers.push_back(buffer.clone());
  }
  return state;
}

TEST_CASE("every rank becomes rank 0, however it started") {
  // Rank 0 resumed at step 4, the others are fresh, from other seeds.
  TrainerRig rank_0(small_run(), one_rank(), tiny_model(1, true));
  rank_0.run_to(4);
  const TrainingState expected = state_of(rank_0);
  std::vector<TrainingState> states(3);
  testing::on_connected_ranks(3, [&](comm::Communicator& communicator) {
    const int rank = communicator.rank();
    TrainerRig rig(small_run(), communicator, tiny_model(1 + rank, true));
    if (rank == 0) {
      const at::NoGradGuard no_grad;
      rig.trainer.parameters().values().copy_(expected.weights);
      rig.trainer.optimizer().state().at(0).flat.copy_(expected.momentum);
      const auto buffers = rig.trainer.model().buffers();
      for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(expected.buffers[i]);
      rig.trainer.progress() = expected.progress;
    }
    broadcast_state(rig.trainer, communicator);
    states[static_cast<std::size_t>(rank)] = state_of(rig);
  });
  for (const TrainingState& state : states) {
    CHECK(state.weights.equal(expected.weights));
    CHECK(state.momentum.equal(expected.momentum));
    REQUIRE(state.buffers.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(state.buffers[i].equal(expected.buffers[i]));
    CHECK(same_progress(state.progress, expected.progress));
  }
}

TEST_CASE("every rank has the average of rank 0") {
  settings::TrainOptions options = small_run();
  options.ema = {0.5};
  std::vector<at::Tensor> averages(2);
  std::vector<at::Tensor> means(2);
  testing::on_connected_ranks(2, [&](comm::Communicator& communicator) {
    const int rank = communicator.rank();
    const auto model = [&] { return tiny_model(1 + rank, /*with_batch_norm=*/true); };
    TrainerRig rig(options, communicator, model(), {.count = 50}, at::kCPU, {}, nullptr, nullptr,
                   model());
    const auto buffers = rig.trainer.average()->model().named_buffers();
    buffers["norm.running_mean"].fill_(rank);
    broadcast_state(rig.trainer, communicator);
    averages[static_cast<std::size_t>(rank)] = rig.trainer.average()->values().clone();
    means[static_cast<std::size_t>(rank)] = buffers["norm.running_mean"].clone();
  });
  CHECK(averages[1].equal(averages[0]));
  for (const at::Tensor& mean : means) CHECK(mean.abs().max().item<double>() == 0);
}

TEST_CASE("one rank stays as it is") {
  comm::Communicator alone;
  TrainerRig rig(small_run(), alone);
  rig.run_to(4);
  const TrainingState before = state_of(rig);
  broadcast_state(rig.trainer, alone);
  CHECK(rig.weights().equal(before.weights));
  CHECK(same_progress(rig.trainer.progress(), before.progress));
}

train::Progress through_text(const train::Progress& progress) {
  return progress_from_json(OrderedJson::parse(progress_to_json(progress).dump()));
}

TEST_CASE("progress comes back in every bit") {
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
  progress.best_step = 900;
  progress.best_test_accuracy = 0.1 + 0.7;
  progress.best_epoch = 2;
  progress.plateau = {2.0 / 7, 3, 4};
  progress.early_stopping = {5.0 / 7, 2};
  CHECK(same_progress(through_text(progress), progress));
}

void check_refused(const OrderedJson& json) {
  INFO(json.dump());
  CHECK(error_of([&] { progress_from_json(json); }).code == ExitCode::kCheckpoint);
}

TEST_CASE("a missing or broken member of the progress is refused") {
  const OrderedJson whole = progress_to_json({});
  CHECK(whole.size() == 14);
  for (const auto& [name, value] : whole.items()) {
    const bool is_newer = name == "best" || name == "plateau" || name == "early_stopping";
    OrderedJson changed = whole;
    changed.erase(name);
    if (is_newer) {  // earlier versions lack it
      CHECK(same_progress(progress_from_json(changed), {}));
    } else {
      check_refused(changed);
    }
    for (const OrderedJson& broken : {OrderedJson("text"), OrderedJson(nullptr)}) {
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

TEST_CASE("each member of the progress is read") {
  const OrderedJson whole = progress_to_json({}).flatten();
  for (const auto& [path, value] : whole.items()) {
    INFO(path);
    OrderedJson changed = progress_to_json({});
    changed[OrderedJson::json_pointer(path)] =
        path == "/accuracies" ? OrderedJson::array({0.5}) : OrderedJson(7);
    CHECK_FALSE(same_progress(progress_from_json(changed), {}));
  }
}

TEST_CASE("JSON that is not progress is refused") {
  for (const char* text : {"", "{", "[]", "null", "3", "\"epoch\"", "{}"}) {
    check_refused(OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false));
  }
}

}  // namespace
}  // namespace mnist_train::checkpoint
