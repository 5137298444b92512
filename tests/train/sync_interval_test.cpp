#include <ATen/ops/zeros.h>

#include <vector>

#include "support/catch.h"
#include "support/ranks.h"
#include "train/step_log.h"

namespace mnist_train::train {
namespace {

TEST_CASE("synchronisations are half a second apart, and move apart step by step") {
  CHECK(next_interval(10, 1.0) == 5);
  CHECK(next_interval(10, 0.5) == 10);
  CHECK(next_interval(10, 0.001) == 20);
  CHECK(next_interval(40, 0.001) == 80);
  CHECK(next_interval(4000, 0) == 8000);
  CHECK(next_interval(50, 3.0) == 8);
  CHECK(next_interval(1, 30.0) == 1);
  CHECK(next_interval(1 << 20, 0) == StepLog::kSteps);
}

TEST_CASE("on CPUs all ranks synchronise after every step") {
  testing::on_connected_ranks(2, [](comm::Communicator& communicator) {
    const at::Tensor sums = at::zeros({StepLog::kScalars});
    StepLog log(sums, sums, communicator, /*runs_ahead=*/false);
    for (int step = 0; step < 20; ++step) {
      if (log.steps_left() != 1 || !log.is_due_after(1))
        throw std::runtime_error("a step without a synchronisation");
      log.synced();
    }
  });
}

TEST_CASE(
    "with a GPU on one rank all of them synchronise after the same steps, by rank 0's clock") {
  std::vector<std::vector<int>> synced_steps(2);
  testing::on_connected_ranks(2, [&](comm::Communicator& communicator) {
    const int rank = communicator.rank();
    const at::Tensor sums = at::zeros({StepLog::kScalars});
    StepLog log(sums, sums, communicator, /*runs_ahead=*/rank == 1);
    for (int epoch = 0; epoch < 2; ++epoch) {
      log.begin_epoch();
      for (int step = 0; step < 100; ++step) {
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (!log.is_due_after(1)) continue;
        synced_steps[static_cast<std::size_t>(rank)].push_back(100 * epoch + step);
        log.synced();
      }
    }
  });
  CHECK(synced_steps[0] == synced_steps[1]);
  CHECK(synced_steps[0].size() > 5);
  CHECK(synced_steps[0].size() < 30);
}

}  // namespace
}  // namespace mnist_train::train
