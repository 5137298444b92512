#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "support/catch.h"
#include "support/scoped_environment.h"

namespace mnist_train::comm {
namespace {

using testing::ScopedEnvironment;

constexpr std::array kVariables{"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
                                "TORCH_FR_BUFFER_SIZE",
                                "TORCH_NCCL_TRACE_BUFFER_SIZE",
                                "TORCH_NCCL_DUMP_ON_TIMEOUT",
                                "TORCH_FR_DUMP_TEMP_FILE",
                                "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
                                "NCCL_SOCKET_IFNAME"};

/// All of them as `value`, and as they were afterwards.
std::vector<std::unique_ptr<ScopedEnvironment>> all_set_to(const char* value) {
  std::vector<std::unique_ptr<ScopedEnvironment>> scopes;
  for (const char* name : kVariables) {
    scopes.push_back(std::make_unique<ScopedEnvironment>(name, value));
  }
  return scopes;
}

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

TEST_CASE("on one host NCCL uses loopback, and its last collectives are recorded for a time-out") {
  const auto clean = all_set_to(nullptr);
  set_nccl_defaults(/*one_host=*/true, "/run/logs");
  CHECK(value_of("NCCL_SOCKET_IFNAME") == "lo");
  CHECK(value_of("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC") == "1000");
  CHECK(value_of("TORCH_FR_BUFFER_SIZE") == "2000");
  CHECK(value_of("TORCH_NCCL_DUMP_ON_TIMEOUT") == "1");
  CHECK(value_of("TORCH_FR_DUMP_TEMP_FILE") == "/run/logs/nccl-rank-");
}

TEST_CASE("on several hosts the interface is NCCL's choice, without a folder nothing is dumped") {
  const auto clean = all_set_to(nullptr);
  set_nccl_defaults(/*one_host=*/false, "");
  CHECK(value_of("NCCL_SOCKET_IFNAME").empty());
  CHECK(value_of("TORCH_FR_DUMP_TEMP_FILE").empty());
}

TEST_CASE("variables that the user set stay, under their earlier names, too") {
  const auto mine = all_set_to("mine");
  set_nccl_defaults(/*one_host=*/true, "/run/logs");
  for (const char* name : kVariables) CHECK(value_of(name) == "mine");
  const ScopedEnvironment buffer("TORCH_FR_BUFFER_SIZE", nullptr);
  const ScopedEnvironment dump("TORCH_FR_DUMP_TEMP_FILE", nullptr);
  set_nccl_defaults(/*one_host=*/true, "/run/logs");
  CHECK(value_of("TORCH_FR_BUFFER_SIZE").empty());
  CHECK(value_of("TORCH_FR_DUMP_TEMP_FILE").empty());
}

}  // namespace
}  // namespace mnist_train::comm
