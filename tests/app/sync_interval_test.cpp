#include "app/sync_interval.h"

#include <vector>

#include "support/catch.h"
#include "support/ranks.h"

namespace mnist_train::app {
namespace {

TEST_CASE("looks lie half a second apart, up to fifty steps, and move apart step by step") {
  CHECK(next_interval(10, 1.0) == 5);
  CHECK(next_interval(10, 0.5) == 10);
  CHECK(next_interval(10, 0.001) == 20);
  CHECK(next_interval(40, 0.001) == 50);
  CHECK(next_interval(50, 0) == 50);
  CHECK(next_interval(50, 3.0) == 8);
  CHECK(next_interval(1, 30.0) == 1);
}

TEST_CASE("on CPUs every step is looked at") {
  testing::on_connected_ranks(2, [](comm::Communicator& communicator) {
    SyncInterval pace(communicator, at::kCPU);
    for (int step = 0; step < 20; ++step) {
      if (!pace.is_due()) throw std::runtime_error("a step was passed over");
      pace.synced();
    }
  });
}

TEST_CASE("with a GPU on one rank all of them look after the same steps, as rank 0's clock says") {
  std::vector<std::vector<int>> looks(2);
  testing::on_connected_ranks(2, [&](comm::Communicator& communicator) {
    const int rank = communicator.rank();
    SyncInterval pace(communicator, at::kCPU, /*runs_ahead=*/rank == 1);
    for (int epoch = 0; epoch < 2; ++epoch) {
      pace.begin_epoch();
      for (int step = 0; step < 100; ++step) {
        if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        if (!pace.is_due()) continue;
        looks[static_cast<std::size_t>(rank)].push_back(100 * epoch + step);
        pace.synced();
      }
    }
  });
  CHECK(looks[0] == looks[1]);
  CHECK(looks[0].size() > 5);
  CHECK(looks[0].size() < 30);
}

}  // namespace
}  // namespace mnist_train::app
