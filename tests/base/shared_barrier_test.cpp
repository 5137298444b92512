#include <cstddef>
#include <stdexcept>
#include <thread>

#include "base/parallel.h"
#include "support/catch.h"

namespace mnist_train {
namespace {

constexpr int kRanks = 3;

/// Memory for a barrier that threads share in place of processes.
struct Memory {
  alignas(64) std::array<std::byte, 1024> bytes{};

  Memory() { REQUIRE(SharedBarrier::bytes(kRanks) <= bytes.size()); }
};

TEST_CASE("after a barrier, each rank sees everything that the others wrote before it") {
  const auto memory = std::make_unique<Memory>();
  constexpr int kRounds = 300;
  std::array<int, kRanks> written{};  // not atomic, so that the thread sanitizer checks them
  std::array<bool, kRanks> right{};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      SharedBarrier barrier(memory->bytes.data(), rank, kRanks);
      bool all_right = true;
      for (int round = 1; round <= kRounds; ++round) {
        written[static_cast<std::size_t>(rank)] = round;
        barrier.arrive_and_wait([](int) {});
        for (const int number : written) all_right = all_right && number == round;
        barrier.arrive_and_wait([](int) {});  // before any rank writes again
      }
      right[static_cast<std::size_t>(rank)] = all_right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == std::array<bool, kRanks>{true, true, true});
}

TEST_CASE("a waiting rank checks all others and may give up") {
  const auto memory = std::make_unique<Memory>();
  std::vector<int> checked;
  const auto give_up = [&](int rank) {
    checked.push_back(rank);
    if (checked.size() == 3) throw std::runtime_error("gives up");
  };
  SharedBarrier first(memory->bytes.data(), 0, kRanks);
  SharedBarrier last(memory->bytes.data(), 2, kRanks);
  CHECK_THROWS_AS(first.arrive_and_wait(give_up), std::runtime_error);
  CHECK(checked == std::vector<int>{1, 2, 1});
  checked.clear();
  CHECK_THROWS_AS(last.arrive_and_wait(give_up), std::runtime_error);
  CHECK(checked == std::vector<int>{0, 1, 0});
  CHECK(last.has_arrived(0));
}

}  // namespace
}  // namespace mnist_train
