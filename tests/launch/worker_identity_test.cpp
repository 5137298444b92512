#include "launch/worker_identity.h"

#include <map>
#include <string>

#include "support/catch.h"
#include "support/error_of.h"
#include "support/scoped_environment.h"

namespace mnist_train::launch {
namespace {

using Catch::Matchers::ContainsSubstring;
using testing::error_of;
using testing::ScopedEnvironment;
using Variables = std::map<std::string, std::string>;

std::optional<WorkerIdentity> identity_in(const Variables& variables) {
  return identity_from_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

/// What torchrun sets for rank 5 of 6 on the second of two nodes.
Variables torchrun() {
  return {{"RANK", "5"},
          {"WORLD_SIZE", "6"},
          {"LOCAL_RANK", "2"},
          {"LOCAL_WORLD_SIZE", "3"},
          {"MASTER_ADDR", "node-1"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RUN_ID", "job-7"},
          {"TORCHELASTIC_RESTART_COUNT", "2"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST_CASE("a process started by hand is nobody's worker") {
  CHECK_FALSE(identity_in({}));
  // Clusters export the address for good.
  CHECK_FALSE(identity_in({{"MASTER_ADDR", "node-1"}, {"MASTER_PORT", "29500"}}));
  CHECK_FALSE(identity_in({{"LOCAL_RANK", "0"}}));
}

TEST_CASE("torchrun's variables say who this is") {
  const auto identity = identity_in(torchrun());
  REQUIRE(identity);
  CHECK(identity->launcher == LauncherKind::kTorchrun);
  CHECK(identity->rank == 5);
  CHECK(identity->world_size == 6);
  CHECK(identity->local_rank == 2);
  CHECK(identity->local_world_size == 3);
  CHECK(identity->master_address == "node-1");
  CHECK(identity->master_port == 29500);
  CHECK(identity->store_served_by_agent);
  CHECK(identity->restart_count == 2);
  CHECK_THAT(identity->decided_by, ContainsSubstring("TORCHELASTIC_USE_AGENT_STORE"));
}

TEST_CASE("keys of one attempt never meet those of another") {
  const auto prefix = [](const Variables& variables) {
    return identity_in(variables)->store_prefix;
  };
  const std::string own = prefix(torchrun());
  CHECK_THAT(own, ContainsSubstring("job-7"));
  CHECK(own != prefix(with(torchrun(), "TORCHELASTIC_RESTART_COUNT", "3")));
  CHECK(own != prefix(with(torchrun(), "TORCHELASTIC_RUN_ID", "job-8")));
  CHECK(own == prefix(with(torchrun(), "RANK", "0")));
}

TEST_CASE("what torchrun leaves out has a default") {
  Variables variables = torchrun();
  for (const char* name : {"LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                           "TORCHELASTIC_USE_AGENT_STORE"}) {
    variables.erase(name);
  }
  const auto identity = identity_in(variables);
  REQUIRE(identity);
  CHECK(identity->local_world_size == 6);
  CHECK(identity->restart_count == 0);
  CHECK_FALSE(identity->store_served_by_agent);
  CHECK_FALSE(identity_in(with(torchrun(), "TORCHELASTIC_USE_AGENT_STORE", "False"))
                  ->store_served_by_agent);
}

TEST_CASE("variables that are missing are all named, with the way on") {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    const auto failure = error_of([&] { identity_in(without(torchrun(), name)); });
    INFO(name);
    CHECK(failure.code == ExitCode::kConfig);
    CHECK_THAT(failure.message, ContainsSubstring(std::string("but ") + name + " are not"));
  }
  const auto failure = error_of([&] { identity_in({{"RANK", "0"}, {"MASTER_ADDR", "x"}}); });
  CHECK_THAT(
      failure.message,
      ContainsSubstring("RANK, MASTER_ADDR are set but WORLD_SIZE, LOCAL_RANK, MASTER_PORT"));
  CHECK_THAT(failure.message, ContainsSubstring("torchrun"));
}

TEST_CASE("values that contradict each other or are no integers are refused by name") {
  struct Case {
    const char* name;
    const char* value;
  };
  for (const Case& bad :
       {Case{"RANK", "6"}, Case{"RANK", "-1"}, Case{"RANK", ""}, Case{"RANK", "1x"},
        Case{"RANK", " 1"}, Case{"RANK", "0x1"}, Case{"RANK", "99999999999"},
        Case{"WORLD_SIZE", "0"}, Case{"WORLD_SIZE", "two"}, Case{"LOCAL_RANK", "3"},
        Case{"LOCAL_RANK", "1.0"}, Case{"LOCAL_WORLD_SIZE", "7"}, Case{"LOCAL_WORLD_SIZE", "0"},
        Case{"MASTER_PORT", "0"}, Case{"MASTER_PORT", "65536"},
        Case{"TORCHELASTIC_RESTART_COUNT", "-1"}}) {
    const auto failure = error_of([&] { identity_in(with(torchrun(), bad.name, bad.value)); });
    INFO(bad.name << "=" << bad.value);
    CHECK(failure.code == ExitCode::kConfig);
    CHECK_THAT(failure.message, ContainsSubstring(bad.name));
    CHECK_THAT(failure.message, ContainsSubstring(std::string("found \"") + bad.value + "\""));
  }
}

TEST_CASE("tasks of a launcher that cannot be joined yet do not each start a run") {
  for (const auto& [tasks, rank, name] :
       {std::array{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI"},
        std::array{"SLURM_NTASKS", "SLURM_PROCID", "Slurm"}}) {
    const auto failure = error_of([&] { identity_in({{tasks, "4"}, {rank, "1"}}); });
    CHECK(failure.code == ExitCode::kConfig);
    CHECK_THAT(failure.message, ContainsSubstring(name));
    CHECK_THAT(failure.message, ContainsSubstring("4 tasks"));
    CHECK_THAT(failure.message, ContainsSubstring("torchrun"));
    // One task, and a batch script outside of its tasks, may start a run.
    CHECK_FALSE(identity_in({{tasks, "1"}, {rank, "0"}}));
    CHECK_FALSE(identity_in({{tasks, "4"}}));
    // torchrun below such a launcher goes first.
    CHECK(identity_in(with(with(torchrun(), tasks, "4"), rank, "1")));
  }
}

TEST_CASE("the process's own environment is asked by default") {
  const ScopedEnvironment rank("RANK", nullptr);
  const ScopedEnvironment world("WORLD_SIZE", nullptr);
  const ScopedEnvironment ompi("OMPI_COMM_WORLD_SIZE", nullptr);
  const ScopedEnvironment slurm("SLURM_NTASKS", nullptr);
  CHECK_FALSE(identity_from_environment());
  const ScopedEnvironment broken("RANK", "0");
  CHECK(error_of([] { identity_from_environment(); }).code == ExitCode::kConfig);
}

}  // namespace
}  // namespace mnist_train::launch
