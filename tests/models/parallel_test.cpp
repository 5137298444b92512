// Tests base/parallel.h in a program that has loaded LibTorch.
#include "base/parallel.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "support/catch.h"

namespace mnist_train {
namespace {

using Parts = std::set<std::pair<std::int64_t, std::int64_t>>;

/// Returns the parts into which [begin, end) is divided.
Parts collect_parts(std::int64_t begin, std::int64_t end, std::int64_t grain) {
  Parts parts;
  std::mutex mutex;
  parallel_for(begin, end, grain, [&](std::int64_t first, std::int64_t last) {
    const std::lock_guard lock(mutex);
    parts.emplace(first, last);
  });
  return parts;
}

/// While an instance exists, LibTorch uses this number of threads.
class Threads {
 public:
  explicit Threads(int number) { at::set_num_threads(number); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

TEST_CASE("work is divided into parts of at least the grain size, each of which is done once") {
  const Threads three(3);
  CHECK(collect_parts(5, 25, 1).size() == 10);  // at most twelve parts of equal size
  const Parts parts = collect_parts(0, 1200, 1);
  CHECK(parts.size() == 12);
  std::int64_t next = 0;
  for (const auto& [begin, end] : parts) {
    CHECK(begin == next);
    CHECK(end - begin == 100);
    next = end;
  }
  CHECK(next == 1200);
  CHECK(collect_parts(0, 20, 10) == Parts{{0, 10}, {10, 20}});
  CHECK(collect_parts(0, 20, 15) == Parts{{0, 20}});
  CHECK(collect_parts(0, 10, 10) == Parts{{0, 10}});
  CHECK(collect_parts(3, 3, 1).empty());
}

TEST_CASE("all of LibTorch's threads share the work, even after their number has changed") {
  for (const int number : {3, 2, 4, 2}) {
    const Threads threads(number);
    std::mutex mutex;
    std::condition_variable arrival;
    std::set<std::thread::id> arrived;
    bool all_arrived = true;
    parallel_for(0, 100, 1, [&](std::int64_t, std::int64_t) {
      std::unique_lock lock(mutex);
      arrived.insert(std::this_thread::get_id());
      arrival.notify_all();
      const auto all = [&] { return arrived.size() == static_cast<std::size_t>(number); };
      all_arrived = arrival.wait_for(lock, std::chrono::seconds(30), all) && all_arrived;
    });
    CHECK(all_arrived);
    CHECK(arrived.size() == static_cast<std::size_t>(number));
  }
}

TEST_CASE("a delayed thread does fewer parts") {
  const Threads two(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> parts = 0;
  for (int round = 0; round < 2000; ++round) {
    std::atomic<int> caller_parts = 0;
    parallel_for(0, 8, 1, [&](std::int64_t, std::int64_t) {
      ++parts;
      if (std::this_thread::get_id() == caller) {
        ++caller_parts;
      } else if (round == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
    if (round == 0) CHECK(caller_parts >= 7);
  }
  CHECK(parts == 2000 * 8);
}

TEST_CASE("a single thread and nested calls do not divide the work") {
  {
    const Threads one(1);
    CHECK(collect_parts(0, 20, 1) == Parts{{0, 20}});
  }
  const Threads two(2);
  std::mutex mutex;
  std::vector<Parts> inner;
  std::set<int> inner_threads;
  parallel_for(0, 2, 1, [&](std::int64_t, std::int64_t) {
    const Parts parts = collect_parts(0, 20, 1);
    const std::lock_guard lock(mutex);
    inner.push_back(parts);
    inner_threads.insert(at::get_num_threads());
  });
  CHECK(inner == std::vector<Parts>{{{0, 20}}, {{0, 20}}});
  CHECK(inner_threads == std::set<int>{1});
  CHECK(at::get_num_threads() == 2);
}

TEST_CASE("concurrent callers all complete their work") {
  std::vector<std::thread> threads;
  std::atomic<std::int64_t> sum = 0;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&] {
      at::set_num_threads(2);
      for (int round = 0; round < 500; ++round) {
        parallel_for(0, 8, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(sum == 4 * 500 * 8);
}

TEST_CASE("an exception on any thread reaches the caller") {
  const Threads two(2);
  const auto fail_at = [](std::int64_t position) {
    parallel_for(0, 2, 1, [&](std::int64_t begin, std::int64_t) {
      if (begin == position) throw std::runtime_error("part");
    });
  };
  CHECK_THROWS_AS(fail_at(0), std::runtime_error);
  CHECK_THROWS_AS(fail_at(1), std::runtime_error);
  CHECK_NOTHROW(fail_at(2));
}

}  // namespace
}  // namespace mnist_train
