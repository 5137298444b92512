// base/parallel.h in programs that have loaded LibTorch.
#include "base/parallel.h"

#include <ATen/Parallel.h>

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

struct Shares {
  std::set<std::pair<std::int64_t, std::int64_t>> parts;
  std::set<std::thread::id> threads;
};

/// Returns what parts the threads get of the numbers from `begin` to `end`.
Shares shares_of(std::int64_t begin, std::int64_t end, std::int64_t grain) {
  Shares shares;
  std::mutex mutex;
  parallel_for(begin, end, grain, [&](std::int64_t first, std::int64_t last) {
    const std::lock_guard lock(mutex);
    shares.parts.emplace(first, last);
    shares.threads.insert(std::this_thread::get_id());
  });
  return shares;
}

/// LibTorch computes with so many threads as long as this lives.
class Threads {
 public:
  explicit Threads(int number) { at::set_num_threads(number); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

using Parts = std::set<std::pair<std::int64_t, std::int64_t>>;

TEST_CASE("as many threads as LibTorch computes with share the work") {
  const Threads three(3);
  const Shares shares = shares_of(5, 25, 1);
  CHECK(shares.parts == Parts{{5, 12}, {12, 19}, {19, 25}});
  CHECK(shares.threads.size() == 3);
}

TEST_CASE("a part is not smaller than the grain") {
  const Threads three(3);
  CHECK(shares_of(0, 20, 10).parts == Parts{{0, 10}, {10, 20}});
  CHECK(shares_of(0, 20, 15).parts == Parts{{0, 20}});
  CHECK(shares_of(0, 10, 10).parts == Parts{{0, 10}});
}

TEST_CASE("one thread does the work alone, also within work that is shared") {
  {
    const Threads one(1);
    CHECK(shares_of(0, 20, 1).parts == Parts{{0, 20}});
  }
  const Threads two(2);
  std::mutex mutex;
  std::vector<Parts> inner;
  parallel_for(0, 2, 1, [&](std::int64_t, std::int64_t) {
    const Shares shares = shares_of(0, 20, 1);
    const std::lock_guard lock(mutex);
    inner.push_back(shares.parts);
  });
  CHECK(inner == std::vector<Parts>{{{0, 20}}, {{0, 20}}});
}

TEST_CASE("what the work throws on any thread is thrown to the caller") {
  const Threads two(2);
  const auto fail_at = [](std::int64_t place) {
    parallel_for(0, 2, 1, [&](std::int64_t begin, std::int64_t) {
      if (begin == place) throw std::runtime_error("part");
    });
  };
  CHECK_THROWS_AS(fail_at(0), std::runtime_error);
  CHECK_THROWS_AS(fail_at(1), std::runtime_error);
  CHECK_NOTHROW(fail_at(2));
}

}  // namespace
}  // namespace mnist_train
