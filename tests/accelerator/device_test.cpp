#include "accelerator/device.h"

#include <cstdint>
#include <vector>

#include "base/system.h"
#include "support/catch.h"

namespace mnist_train::accelerator {
namespace {

TEST_CASE("peak memory counts touched pages and never decreases") {
  const std::int64_t before = peak_memory_bytes(at::kCPU);
  {
    const std::vector<char> block(64 << 20, 'x');
    CHECK(block.back() == 'x');
  }
  const std::int64_t after = peak_memory_bytes(at::kCPU);
  CHECK(after >= (64 << 20));
  CHECK(after >= before);
}

TEST_CASE("synchronizing a CPU is a no-op") { synchronize(at::kCPU); }

TEST_CASE("a wait ends once the event has completed") {
  const double done_s = monotonic_seconds() + 0.02;
  wait_until([&] { return monotonic_seconds() >= done_s; });
  const double now_s = monotonic_seconds();
  CHECK(now_s >= done_s);
  CHECK(now_s < done_s + 1);
}

}  // namespace
}  // namespace mnist_train::accelerator
