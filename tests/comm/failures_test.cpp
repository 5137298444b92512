#include "comm/communicator.h"
#include "support/error_of.h"

namespace mnist_train::comm {
namespace {

using testing::error_of;

const std::string kNoMemory =
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 64 bytes. Error code 12 (Cannot allocate memory)";

TEST_CASE("a time-out is recognised by the messages of backends") {
  CHECK(is_timeout(std::runtime_error("Timed out waiting 30000ms for recv operation")));
  CHECK(
      is_timeout(std::runtime_error("Watchdog caught collective operation timeout: WorkNCCL(…)")));
  CHECK_FALSE(is_timeout(std::runtime_error("Connection closed by peer")));
}

TEST_CASE("a rank's own lack of memory is not the loss of another rank") {
  const auto failure_of = [](const auto& error) {
    return error_of([&] { translate_failures("all-reduce", [&] { throw error; }); });
  };
  const auto lost = failure_of(std::runtime_error("[a/pair.cc:5] Connection closed by peer"));
  CHECK(lost.is_peer_error);
  CHECK(lost.message == "lost another rank during all-reduce: Connection closed by peer");
  CHECK_FALSE(failure_of(Error(ExitCode::kConfig, "own")).is_peer_error);
  const c10::SourceLocation here{"", "", 0};
  CHECK_THROWS_AS(failure_of(c10::Error(here, kNoMemory)), c10::Error);
  CHECK_THROWS_AS(failure_of(c10::OutOfMemoryError(here, "CUDA out of memory")),
                  c10::OutOfMemoryError);
  CHECK_THROWS_AS(failure_of(std::bad_alloc()), std::bad_alloc);
  CHECK_THROWS_AS(failure_of(c10::AcceleratorError(here, 700, "CUDA error")),
                  c10::AcceleratorError);
  CHECK(failure_of(c10::Error(here, "another one")).is_peer_error);
}

TEST_CASE("a lack of memory in LibTorch's allocator is recognised by its message") {
  bool found = false;
  try {
    at::empty({std::int64_t{1} << 55}, at::kByte);
  } catch (const std::exception& error) {
    found = is_out_of_memory(error);
  }
  CHECK(found);
}

}  // namespace
}  // namespace mnist_train::comm
