#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "support/catch.h"
#include "support/progress.h"
#include "support/ranks.h"
#include "support/trainer_rig.h"

namespace mnist_train::checkpoint {
namespace {

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

}  // namespace
}  // namespace mnist_train::checkpoint
