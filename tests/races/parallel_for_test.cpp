// Tests parallel_for on several threads without LibTorch, which is not instrumented for the thread
// sanitizer: this file defines the functions of LibTorch and base/system that parallel_for calls.

#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "base/system.h"
#include "support/catch.h"

namespace at {
int get_num_threads() { return 4; }
}  // namespace at
extern "C" void omp_set_num_threads(int /*threads*/) {}
extern "C" int omp_in_parallel() { return 0; }

namespace mnist_train {

std::thread start_thread(std::function<void()> work) { return std::thread(std::move(work)); }

namespace {

constexpr std::int64_t kCount = 1000;

/// Adds 1 to each number, in nested calls of parallel_for.
void increment(std::vector<int>& numbers) {
  parallel_for(0, kCount, 10, [&](std::int64_t begin, std::int64_t end) {
    parallel_for(begin, end, 1, [&](std::int64_t first, std::int64_t last) {
      for (; first < last; ++first) ++numbers[static_cast<std::size_t>(first)];
    });
  });
}

TEST_CASE("helper threads do each part once, and their results are visible afterwards") {
  std::vector<int> numbers(kCount);
  constexpr int kRounds = 500;
  for (int round = 0; round < kRounds; ++round) increment(numbers);
  CHECK(std::accumulate(numbers.begin(), numbers.end(), 0) == kRounds * kCount);
}

TEST_CASE("callers that compete for the helper threads all complete their work") {
  constexpr int kRounds = 200;
  std::vector<int> mine(kCount);
  std::vector<int> theirs(kCount);
  std::thread other([&] {
    for (int round = 0; round < kRounds; ++round) increment(theirs);
  });
  for (int round = 0; round < kRounds; ++round) increment(mine);
  other.join();
  CHECK(mine == std::vector<int>(kCount, kRounds));
  CHECK(theirs == mine);
}

TEST_CASE("an exception is rethrown after all parts have ended") {
  std::vector<int> numbers(kCount);
  const auto work = [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; ++begin) ++numbers[static_cast<std::size_t>(begin)];
    throw std::runtime_error("a part failed");
  };
  CHECK_THROWS_AS(parallel_for(0, kCount, 10, work), std::runtime_error);
  CHECK(numbers == std::vector<int>(kCount, 1));
}

}  // namespace
}  // namespace mnist_train
