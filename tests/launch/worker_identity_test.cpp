#include <unistd.h>

#include "launch/job.h"
#include "support/error_of.h"

namespace mnist_train::launch {
namespace {

using Catch::Matchers::ContainsSubstring;
using namespace testing;
using Variables = std::map<std::string, std::string>;

/// Returns the identity determined by an environment with only these variables.
std::optional<WorkerIdentity> identity_in(const Variables& variables) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : variables) texts.push_back(name + "=" + value);
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  const std::unique_ptr<char*, void (*)(char**)> restore(std::exchange(environ, pointers.data()),
                                                         [](char** before) { environ = before; });
  return identity_from_environment();
}

/// Returns the launcher, rank, local rank and rank 0's host, such as "torchrun 5/6 2/3 node-1".
std::string place_of(const std::optional<WorkerIdentity>& identity) {
  if (!identity) return "none";
  return std::string(name_of(identity->launcher)) + " " + std::to_string(identity->rank) + "/" +
         std::to_string(identity->world_size) + " " + std::to_string(identity->local_rank) + "/" +
         std::to_string(identity->local_world_size) + " " + identity->master_address;
}

/// The variables that torchrun sets for rank 5 of 6, on the second of two nodes.
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

Variables with(Variables variables, const Variables& others) {
  for (const auto& [name, value] : others) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::vector<std::string>& names) {
  for (const std::string& name : names) variables.erase(name);
  return variables;
}

Failure refusal_of(const Variables& variables) {
  return error_of([&] { identity_in(variables); });
}

TEST_CASE("a process started manually is not another launcher's worker") {
  CHECK_FALSE(identity_in({}));
  // Some clusters always set the address.
  CHECK_FALSE(identity_in({{"MASTER_ADDR", "node-1"}, {"MASTER_PORT", "29500"}}));
  CHECK_FALSE(identity_in({{"LOCAL_RANK", "0"}}));
}

TEST_CASE("torchrun's variables determine rank and address") {
  const auto identity = identity_in(torchrun());
  REQUIRE(place_of(identity) == "torchrun 5/6 2/3 node-1");
  CHECK(identity->master_port == 29500);
  CHECK(identity->store_served_by_agent);
  CHECK(identity->restart_count == 2);
  CHECK_THAT(identity->detected_from, ContainsSubstring("TORCHELASTIC_USE_AGENT_STORE"));
}

TEST_CASE("different attempts have different store prefixes") {
  const auto prefix = [](const Variables& variables) {
    return identity_in(variables)->store_prefix;
  };
  const std::string own = prefix(torchrun());
  CHECK_THAT(own, ContainsSubstring("job-7"));
  CHECK(own != prefix(with(torchrun(), {{"TORCHELASTIC_RESTART_COUNT", "3"}})));
  CHECK(own != prefix(with(torchrun(), {{"TORCHELASTIC_RUN_ID", "job-8"}})));
  CHECK(own == prefix(with(torchrun(), {{"RANK", "0"}})));
}

TEST_CASE("torchrun's optional variables have defaults") {
  const auto identity = identity_in(
      without(torchrun(), {"LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                           "TORCHELASTIC_USE_AGENT_STORE"}));
  REQUIRE(identity);
  CHECK(identity->local_world_size == 3);
  CHECK(identity->restart_count == 0);
  CHECK_FALSE(identity->store_served_by_agent);
  CHECK_FALSE(identity_in(with(torchrun(), {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))
                  ->store_served_by_agent);
}

TEST_CASE("without LOCAL_RANK, a process is the only one on its host") {
  const Variables needed = without(torchrun(), {"LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  for (const auto& [rank, place] :
       {std::pair("0", "torchrun 0/6 0/1 node-1"), {"5", "torchrun 5/6 0/1 node-1"}}) {
    const Variables variables = with(needed, {{"RANK", rank}});
    CHECK(place_of(identity_in(variables)) == place);
    CHECK(place_of(identity_in(with(variables, {{"LOCAL_WORLD_SIZE", "1"}}))) == place);
  }
  CHECK(place_of(identity_in(with(needed, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}))) ==
        "torchrun 0/1 0/1 node-1");
  CHECK_THAT(
      refusal_of(with(needed, {{"LOCAL_WORLD_SIZE", "2"}})),
      IsError(ExitCode::kConfig, "LOCAL_RANK: expected an integer from 0 to 1, but it is not set"));
}

TEST_CASE("with only LOCAL_RANK, ranks are on one host if it equals RANK") {
  const Variables local = without(torchrun(), {"LOCAL_WORLD_SIZE"});
  CHECK(place_of(identity_in(with(local, {{"RANK", "2"}}))) == "torchrun 2/6 2/6 node-1");
  CHECK(place_of(identity_in(with(local, {{"LOCAL_RANK", "0"}}))) == "torchrun 5/6 0/1 node-1");
}

TEST_CASE("the error lists all missing variables and the launchers that set them") {
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    INFO(name);
    CHECK_THAT(refusal_of(without(torchrun(), {name})),
               IsError(ExitCode::kConfig, std::string("others are not (") + name + ")"));
  }
  CHECK_THAT(refusal_of({{"RANK", "0"}, {"MASTER_ADDR", "x"}}),
             IsError(ExitCode::kConfig,
                     "are set (RANK, MASTER_ADDR), but others are not (WORLD_SIZE, MASTER_PORT)",
                     "torchrun"));
}

TEST_CASE("contradictory values and non-integers are refused, and the error names the variable") {
  using Case = std::pair<const char*, const char*>;
  for (const auto& [name, value] :
       {Case{"RANK", "6"}, Case{"RANK", "-1"}, Case{"RANK", ""}, Case{"RANK", "1x"},
        Case{"RANK", " 1"}, Case{"RANK", "0x1"}, Case{"RANK", "99999999999"},
        Case{"WORLD_SIZE", "0"}, Case{"WORLD_SIZE", "two"}, Case{"LOCAL_RANK", "3"},
        Case{"LOCAL_RANK", "1.0"}, Case{"LOCAL_WORLD_SIZE", "7"}, Case{"LOCAL_WORLD_SIZE", "0"},
        Case{"MASTER_ADDR", ""}, Case{"MASTER_PORT", "0"}, Case{"MASTER_PORT", "65536"},
        Case{"TORCHELASTIC_RESTART_COUNT", "-1"}}) {
    CHECK_THAT(refusal_of(with(torchrun(), {{name, value}})),
               IsError(ExitCode::kConfig, name, std::string("found \"") + value + "\""));
  }
}

/// The variables that Slurm sets for task 3 of 5, on the second of two nodes.
Variables slurm() {
  return {{"SLURM_PROCID", "3"},
          {"SLURM_NTASKS", "5"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "1"},
          {"SLURM_NNODES", "2"},
          {"SLURM_STEP_TASKS_PER_NODE", "3,2"},
          {"SLURM_STEP_NODELIST", "gpu[07-08]"},
          {"SLURM_JOB_ID", "4711"},
          {"SLURM_STEP_ID", "0"}};
}

TEST_CASE("srun's variables determine rank and, without MASTER_ADDR and MASTER_PORT, the address") {
  const auto identity = identity_in(slurm());
  REQUIRE(place_of(identity) == "slurm 3/5 0/2 gpu07");
  CHECK(identity->master_port >= 15000);
  CHECK(identity->master_port < 32000);
  CHECK(identity->master_port == identity_in(with(slurm(), {{"SLURM_PROCID", "0"}}))->master_port);
  CHECK(identity->master_port != identity_in(with(slurm(), {{"SLURM_STEP_ID", "1"}}))->master_port);
  CHECK(identity->master_port != identity_in(with(slurm(), {{"SLURM_JOB_ID", "1"}}))->master_port);
  CHECK_THAT(identity->detected_from, ContainsSubstring("SLURM_STEP_NODELIST"));
  const auto told =
      identity_in(with(slurm(), {{"MASTER_ADDR", "login"}, {"MASTER_PORT", "29500"}}));
  CHECK(told->master_address == "login");
  CHECK(told->master_port == 29500);
  CHECK_THAT(told->detected_from, ContainsSubstring("MASTER_ADDR"));
  const auto requeued = identity_in(with(slurm(), {{"SLURM_RESTART_COUNT", "2"}}));
  CHECK(requeued->restart_count == 2);
  CHECK(requeued->store_prefix != identity->store_prefix);
}

TEST_CASE("tasks on one node use loopback") {
  CHECK(identity_in(with(slurm(), {{"SLURM_STEP_TASKS_PER_NODE", "5"},
                                   {"SLURM_NODEID", "0"},
                                   {"SLURM_STEP_NODELIST", "gpu07"}}))
            ->master_address == "127.0.0.1");
  // With as few variables as possible.
  CHECK(identity_in({{"SLURM_PROCID", "1"},
                     {"SLURM_NTASKS", "2"},
                     {"SLURM_LOCALID", "1"},
                     {"SLURM_STEP_NODELIST", "n1"},
                     {"SLURM_JOB_ID", "1"},
                     {"SLURM_STEP_ID", "0"}})
            ->master_address == "127.0.0.1");
}

TEST_CASE("shells and one-task batch scripts start their own processes; srun's tasks do not") {
  CHECK_FALSE(identity_in(without(slurm(), {"SLURM_PROCID"})));  // salloc
  const Variables alone{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_JOB_ID", "4711"}};
  CHECK_FALSE(identity_in(alone));
  CHECK(place_of(identity_in(with(alone, {{"SLURM_STEP_ID", "0"}, {"SLURM_LOCALID", "0"}}))) ==
        "slurm 0/1 0/1 127.0.0.1");
}

TEST_CASE("a shell that is a job step starts its own processes; srun's tasks inside it do not") {
  const Variables shell = with(slurm(), {{"SLURM_JOB_NAME", "interactive"},
                                         {"SLURM_PROCID", "0"},
                                         {"SLURM_STEP_NUM_TASKS", "1"},
                                         {"PMI_RANK", "0"},  // MpiDefault=pmi2
                                         {"PMI_SIZE", "1"}});
  for (const char* step : {"4294967290", "interactive", "4294967292", "extern"}) {
    INFO(step);
    CHECK_FALSE(identity_in(with(shell, {{"SLURM_STEP_ID", step}})));
  }
  // Tasks that srun starts in such a shell inherit the job's name.
  for (const char* name : {"interactive", "bash"}) {
    CHECK(identity_in(with(slurm(), {{"SLURM_JOB_NAME", name}})).value().rank == 3);
  }
}

TEST_CASE("a batch script without srun is refused, whether or not it has a step id") {
  const Variables unnumbered =
      without(slurm(), {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"});
  CHECK_THAT(refusal_of(unnumbered).message, ContainsSubstring("5 tasks"));
  for (const char* step : {"4294967291", "batch"}) {
    INFO(step);
    const Variables batch = with(slurm(), {{"SLURM_STEP_ID", step}, {"SLURM_PROCID", "0"}});
    CHECK_THAT(refusal_of(batch), IsError(ExitCode::kConfig, "5 tasks", "srun mnist-train"));
    CHECK_FALSE(identity_in(with(batch, {{"SLURM_NTASKS", "1"}})));
    const Variables mpirun{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}};
    CHECK(identity_in(with(batch, mpirun))->launcher == LauncherKind::kMpich);
  }
}

TEST_CASE("the error names a missing Slurm variable") {
  for (const char* name : {"SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST"}) {
    INFO(name);
    CHECK_THAT(refusal_of(without(slurm(), {name})), IsError(ExitCode::kConfig, name));
  }
}

TEST_CASE("the first host of a Slurm host list is found") {
  CHECK(first_host("node1") == "node1");
  CHECK(first_host("node1,node2") == "node1");
  CHECK(first_host("gpu[003-010,15],login") == "gpu003");
  CHECK(first_host("gpu[7]") == "gpu7");
  CHECK(first_host("rack[1-2]-n[04,06]") == "rack1-n04");
  CHECK(first_host("a[1-3].cluster,b") == "a1.cluster");
  CHECK(first_host("gpu[") == "gpu");
  CHECK(first_host("") == "");
}

TEST_CASE("Slurm's task counts per node are parsed") {
  for (const auto& [node, count] : {std::pair{0, 2}, {1, 2}, {2, 2}, {3, 1}, {4, 0}}) {
    CHECK(tasks_on_node("2(x3),1", node) == count);
  }
  CHECK(tasks_on_node("4", 0) == 4);
  CHECK(tasks_on_node("", 0) == 0);
  CHECK(tasks_on_node("two", 0) == 0);
  CHECK(tasks_on_node("2;3", 1) == 0);
}

/// The variables that Open MPI sets for process 1 of 2 on one host.
Variables open_mpi() {
  return {{"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"PMIX_NAMESPACE", "3539009537"}};
}

TEST_CASE("on one host, Open MPI needs no address") {
  const auto identity = identity_in(open_mpi());
  REQUIRE(place_of(identity) == "open-mpi 1/2 1/2 127.0.0.1");
  CHECK(identity->master_port !=
        identity_in(with(open_mpi(), {{"PMIX_NAMESPACE", "1"}}))->master_port);
  CHECK(place_of(identity_in({{"OMPI_COMM_WORLD_RANK", "0"},
                              {"OMPI_COMM_WORLD_SIZE", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}})) ==
        "open-mpi 0/1 0/1 127.0.0.1");
}

TEST_CASE("if Open MPI sets no namespace, processes with the same parent use the same store") {
  const auto first = identity_in(without(open_mpi(), {"PMIX_NAMESPACE"}));
  const auto second =
      identity_in(with(without(open_mpi(), {"PMIX_NAMESPACE"}), {{"OMPI_COMM_WORLD_RANK", "0"}}));
  REQUIRE(first);
  CHECK(first->master_port == second->master_port);
  CHECK(first->store_prefix == second->store_prefix);
  CHECK_THAT(first->detected_from, ContainsSubstring("parent"));
}

TEST_CASE("all attempts of one torchrun, and only these, have the same launch") {
  const auto launch_of = [](const char* run_id, const char* error_file) {
    return identity_in(with(torchrun(), {{"TORCHELASTIC_RUN_ID", run_id},
                                         {"TORCHELASTIC_ERROR_FILE", error_file}}))
        ->launch;
  };
  CHECK(launch_of("mine", "/tmp/a/attempt_0/0/error.json") == "mine");
  const std::string first = launch_of("none", "/tmp/a/none_1/attempt_0/0/error.json");
  CHECK(launch_of("none", "/tmp/a/none_1/attempt_1/1/error.json") == first);
  CHECK(launch_of("none", "/tmp/a/none_2/attempt_1/1/error.json") != first);
  CHECK(identity_in(without(torchrun(), {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}))
            ->launch.empty());
}

TEST_CASE("on several hosts, Open MPI needs the address of rank 0") {
  const Variables two_hosts = with(open_mpi(), {{"OMPI_COMM_WORLD_SIZE", "4"}});
  CHECK_THAT(refusal_of(two_hosts), IsError(ExitCode::kConfig, "-x MASTER_ADDR=HOST"));
  const auto identity = identity_in(with(two_hosts, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "99"}}));
  CHECK(identity->master_address == "a");
  CHECK(identity->master_port == 99);
}

/// The variables that MPICH sets for process 1 of 2 on one host.
Variables mpich() {
  return {{"PMI_RANK", "1"},        {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"},
          {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "8"},   {"HYDI_CONTROL_FD", "7"}};
}

TEST_CASE("on one host, MPICH needs no address") {
  for (const Variables& variables : {mpich(), without(mpich(), {"MPI_LOCALNRANKS"})}) {
    const auto identity = identity_in(variables);
    REQUIRE(place_of(identity) == "mpich 1/2 1/2 127.0.0.1");
    const auto other = identity_in(with(mpich(), {{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}}));
    CHECK(identity->master_port == other->master_port);
    CHECK(identity->store_prefix == other->store_prefix);
    CHECK_THAT(identity->detected_from, ContainsSubstring("PMI_RANK, PMI_SIZE, MPI_LOCALRANKID"));
  }
}

TEST_CASE("on several hosts, MPICH needs the address of rank 0") {
  const Variables two_hosts = with(mpich(), {{"PMI_SIZE", "4"}});
  for (const Variables& told :
       {two_hosts, with(two_hosts, {{"MASTER_ADDR", "a"}}),
        with(two_hosts, {{"MASTER_ADDR", ""}, {"MASTER_PORT", "99"}}),
        with(without(two_hosts, {"MPI_LOCALNRANKS"}), {{"PMI_RANK", "3"}})}) {
    CHECK_THAT(refusal_of(told), IsError(ExitCode::kConfig, "-genv MASTER_ADDR HOST"));
  }
  const Variables told = with(two_hosts, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "99"}});
  CHECK(identity_in(told)->master_address == "a");
  CHECK(identity_in(told)->master_port == 99);
  // Processes on different hosts have different parents.
  CHECK_THAT(identity_in(told)->store_prefix, !ContainsSubstring("child"));
}

TEST_CASE("a single MPICH variable is ignored, and incomplete sets are refused") {
  for (const char* name : {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}) {
    INFO(name);
    CHECK_FALSE(identity_in({{name, "2"}}));
  }
  CHECK_FALSE(identity_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"PMI_FD", "9"}}));
  for (const char* name : {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}) {
    INFO(name);
    CHECK_THAT(refusal_of(without(mpich(), {name})),
               IsError(ExitCode::kConfig, std::string("others are not (") + name + ")"));
  }
  for (const auto& [name, value] : {std::pair{"PMI_RANK", "2"},
                                    {"PMI_RANK", "x"},
                                    {"PMI_SIZE", "0"},
                                    {"MPI_LOCALRANKID", "2"},
                                    {"MPI_LOCALNRANKS", "3"},
                                    {"MPI_LOCALNRANKS", ""}}) {
    INFO(name << "=" << value);
    CHECK_THAT(refusal_of(with(mpich(), {{name, value}})), IsError(ExitCode::kConfig, name));
  }
}

TEST_CASE("Slurm's PMI variables are ignored, and MPICH has the lowest precedence") {
  CHECK(place_of(identity_in(with(slurm(), {{"PMI_RANK", "7"}, {"PMI_SIZE", "8"}}))) ==
        "slurm 3/5 0/2 gpu07");
  const Variables both = with(open_mpi(), mpich());
  CHECK(identity_in(both)->launcher == LauncherKind::kOpenMpi);
  const Variables unequal = with(both, {{"PMI_RANK", "0"}, {"MPI_LOCALRANKID", "0"}});
  CHECK_THAT(refusal_of(unequal),
             IsError(ExitCode::kConfig, "Open MPI says rank 1 of 2", "MPICH says rank 0 of 2"));
  CHECK(identity_in(with(unequal, torchrun()))->launcher == LauncherKind::kTorchrun);
}

TEST_CASE("if srun started mpirun's daemons, mpirun determines the identity") {
  const Variables daemon = with(slurm(), {{"SLURM_PROCID", "1"},
                                          {"SLURM_STEP_NUM_TASKS", "2"},
                                          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                          {"MASTER_ADDR", "gpu07"},
                                          {"MASTER_PORT", "29500"}});
  for (const Variables& mpi :
       {with(open_mpi(), {{"OMPI_COMM_WORLD_SIZE", "4"}}), with(mpich(), {{"PMI_SIZE", "4"}}),
        with(mpich(), {{"PMI_RANK", "0"}})}) {
    const auto identity = identity_in(with(daemon, mpi));
    CHECK(identity->launcher != LauncherKind::kSlurm);
    CHECK(identity->local_world_size == 2);
  }
  // Several tasks per node are not daemons.
  const Variables tasks =
      with(daemon, {{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}, {"SLURM_STEP_NUM_TASKS", "4"}});
  CHECK_THAT(refusal_of(with(tasks, with(mpich(), {{"PMI_SIZE", "8"}}))),
             IsError(ExitCode::kConfig, "Slurm says rank 1 of 4"));
}

TEST_CASE("torchrun has precedence over Slurm, and a contradiction is an error") {
  const Variables both = with(slurm(), open_mpi());
  CHECK_THAT(refusal_of(both),
             IsError(ExitCode::kConfig, "Slurm says rank 3 of 5", "Open MPI says rank 1 of 2"));
  const Variables equal = with(
      both, {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
  CHECK(identity_in(equal)->launcher == LauncherKind::kSlurm);
  const Variables batch_script = without(equal, {"SLURM_STEP_ID"});
  CHECK(identity_in(batch_script)->launcher == LauncherKind::kOpenMpi);
  CHECK(identity_in(with(batch_script, torchrun()))->launcher == LauncherKind::kTorchrun);
}

}  // namespace
}  // namespace mnist_train::launch
