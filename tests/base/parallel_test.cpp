#include "base/parallel.h"

#include <thread>

#include "support/catch.h"

namespace mnist_train {
namespace {

TEST_CASE("without LibTorch, the calling thread does all the work in one part") {
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;
  std::thread::id thread;
  parallel_for(3, 1000, 1, [&](std::int64_t begin, std::int64_t end) {
    parts.emplace_back(begin, end);
    thread = std::this_thread::get_id();
  });
  CHECK(parts == std::vector<std::pair<std::int64_t, std::int64_t>>{{3, 1000}});
  CHECK(thread == std::this_thread::get_id());
  parallel_for(3, 3, 1,
               [&](std::int64_t begin, std::int64_t end) { parts.emplace_back(begin, end); });
  CHECK(parts.size() == 1);
}

}  // namespace
}  // namespace mnist_train
