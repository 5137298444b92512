#include "accelerator/device.h"

#include <cstdint>
#include <vector>

#include "support/catch.h"

namespace mnist_train::accelerator {
namespace {

TEST_CASE("peak memory counts what was touched, and never falls") {
  const std::int64_t before = peak_memory_bytes(at::kCPU);
  {
    const std::vector<char> block(64 << 20, 'x');
    CHECK(block.back() == 'x');
  }
  const std::int64_t after = peak_memory_bytes(at::kCPU);
  CHECK(after >= (64 << 20));
  CHECK(after >= before);
}

TEST_CASE("a CPU has neither a name nor a graph, and nothing to wait for") {
  CHECK(device_name(at::kCPU).empty());
  CHECK(make_graph(at::kCPU) == nullptr);
  synchronize(at::kCPU);
}

}  // namespace
}  // namespace mnist_train::accelerator
