#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "support/catch.h"
#include "support/progress.h"
#include "support/ranks.h"
#include "support/trainer_rig.h"

namespace mnist_train::checkpoint {
namespace {

using namespace testing;

/// Returns an empty in-memory file like the one that the launcher creates.
UniqueFd memory_file() { return UniqueFd(::memfd_create("snapshots", MFD_CLOEXEC)); }

TEST_CASE("the next attempt restores the trainer from the snapshot") {
  const UniqueFd file = memory_file();
  TrainerRig before(small_run(), one_rank(), tiny_model(1, true));
  before.run_to(4);
  SnapshotMemory(file.get(), before.trainer, one_rank())
      .take(before.trainer, {123, 45}, /*is_checkpoint=*/true);
  TrainerRig after(small_run(), one_rank(), tiny_model(2, true));
  REQUIRE_FALSE(same_tensors(before, after));
  const SnapshotMemory memory(file.get(), after.trainer, one_rank());
  CHECK(memory.is_checkpoint(4));
  const auto facts = memory.restore(after.trainer, 4);
  CHECK(facts.metrics_bytes == 123);
  CHECK(facts.event_bytes == 45);
  CHECK(same_tensors(before, after));
  CHECK(same_progress(after.trainer.progress(), before.trainer.progress()));
  before.run_to(9);
  after.run_to(9);
  CHECK(same_tensors(before, after));
}

TEST_CASE("the two newest snapshots and the newest checkpointed one are kept") {
  const UniqueFd file = memory_file();
  TrainerRig rig(small_run(), one_rank(), tiny_model(1, true));
  SnapshotMemory memory(file.get(), rig.trainer, one_rank());
  CHECK(memory.steps().empty());
  std::vector<at::Tensor> weights;
  for (const std::int64_t step : {1, 2, 3, 4, 5}) {
    rig.run_to(step);
    memory.take(rig.trainer, {}, /*is_checkpoint=*/step == 2);
    weights.push_back(rig.weights());
  }
  CHECK(memory.steps() == std::vector<std::int64_t>{2, 4, 5});
  CHECK(memory.is_checkpoint(2));
  CHECK_FALSE(memory.is_checkpoint(4));
  TrainerRig after(small_run(), one_rank(), tiny_model(2, true));
  SnapshotMemory again(file.get(), after.trainer, one_rank());
  for (const std::int64_t step : {2, 4, 5}) {
    again.restore(after.trainer, step);
    CHECK(after.trainer.progress().step == step);
    CHECK(after.weights().equal(weights[static_cast<std::size_t>(step - 1)]));
  }
  after.run_to(6);
  again.take(after.trainer, {}, /*is_checkpoint=*/false);
  CHECK(again.steps() == std::vector<std::int64_t>{2, 5, 6});
}

TEST_CASE("a plan is still valid once the next one has been made") {
  const UniqueFd file = memory_file();
  TrainerRig rig(small_run(), one_rank(), tiny_model(1, true));
  SnapshotMemory memory(file.get(), rig.trainer, one_rank());
  for (const std::int64_t moment : {1, 2}) memory.plan(moment);
  for (const std::int64_t moment : {1, 2, 3}) CHECK(memory.is_planned(moment) == (moment < 3));
}

TEST_CASE("a snapshot that one rank did not finish is never used and is overwritten") {
  const UniqueFd file = memory_file();
  const auto outcomes = results_of_ranks(2, [&](comm::Communicator& communicator) {
    TrainerRig rig(small_run(), communicator, tiny_model(1, true));
    SnapshotMemory memory(file.get(), rig.trainer, communicator);
    rig.run_to(3);
    memory.take(rig.trainer, {}, /*is_checkpoint=*/false);
    const at::Tensor weights = rig.weights();
    rig.run_to(5);
    if (communicator.rank() == 1) memory.take(rig.trainer, {}, /*is_checkpoint=*/false);
    communicator.barrier();  // as if rank 0 died before it took its part
    TrainerRig after(small_run(), communicator, tiny_model(2, true));
    SnapshotMemory again(file.get(), after.trainer, communicator);
    std::vector<std::vector<std::int64_t>> steps{again.steps()};
    again.restore(after.trainer, 3);
    steps.push_back({after.trainer.progress().step});
    const bool same = after.weights().equal(weights);
    communicator.barrier();
    after.run_to(7);
    again.take(after.trainer, {}, /*is_checkpoint=*/false);
    communicator.barrier();
    steps.push_back(again.steps());
    return std::pair(same, steps);
  });
  for (const auto& [same, steps] : outcomes) {
    CHECK(same);
    CHECK(steps == std::vector<std::vector<std::int64_t>>{{3}, {3}, {3, 7}});
  }
}

}  // namespace
}  // namespace mnist_train::checkpoint
