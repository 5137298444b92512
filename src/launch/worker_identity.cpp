#include "launch/worker_identity.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <string_view>

#include "base/enum_name.h"
#include "launch/launcher_variables.h"
#include "launch/mpirun_identity.h"

namespace mnist_train::launch {

namespace {

std::string required_by_slurm(const EnvironmentLookup& lookup, const char* name,
                              const char* purpose) {
  if (auto value = lookup(name); value && !value->empty()) return *value;
  refuse_environment(std::string("Slurm's variable ") + name +
                     " is not set, but is needed to find " + purpose +
                     ": start the tasks with srun, or set MASTER_ADDR and MASTER_PORT");
}

int tasks_on_this_node(const EnvironmentLookup& lookup, int local_rank, int world_size) {
  const int node = optional_integer(lookup, "SLURM_NODEID", 0, kMostTasks, 0);
  const std::string tasks = lookup("SLURM_STEP_TASKS_PER_NODE").value_or("");
  if (const int count = count_of_node(tasks, node); count > local_rank) return count;
  if (optional_integer(lookup, "SLURM_STEP_NUM_NODES", 1, kMostTasks, 1) == 1 &&
      optional_integer(lookup, "SLURM_NNODES", 1, kMostTasks, 1) == 1) {
    const std::string list = lookup("SLURM_STEP_NODELIST").value_or("");
    if (list.find_first_of(",[") == std::string::npos) return world_size;
  }
  return local_rank + 1;
}

void choose_slurm_master(const EnvironmentLookup& lookup, WorkerIdentity& identity) {
  identity.master_address = lookup("MASTER_ADDR").value_or("");
  if (!identity.master_address.empty()) {
    identity.decided_by += ", MASTER_ADDR";
  } else if (identity.local_world_size == identity.world_size) {
    identity.master_address = "127.0.0.1";
  } else {
    identity.master_address =
        first_host(required_by_slurm(lookup, "SLURM_STEP_NODELIST", "rank 0's host"));
    identity.decided_by += ", SLURM_STEP_NODELIST";
  }
}

/// How Slurm started this process, if it did.
enum class SlurmStart { kShell, kBatchScript, kTask };

/// A shell may be one of salloc, which knows the job alone, or the job's interactive step, which
/// salloc starts like a task under a number that Slurm keeps for it. A process that joined a job
/// from outside is in the extern step. The job's name does not tell: srun's tasks inherit it.
SlurmStart slurm_start(const EnvironmentLookup& lookup) {
  const auto step = lookup("SLURM_STEP_ID");
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return step && std::find(names.begin(), names.end(), *step) != names.end();
  };
  if (!lookup("SLURM_PROCID")) return SlurmStart::kShell;
  if (is_one_of({"4294967290", "interactive", "4294967292", "extern"})) return SlurmStart::kShell;
  const bool has_step = step || lookup("SLURM_STEP_NODELIST");
  if (!has_step || is_one_of({"4294967291", "batch"})) return SlurmStart::kBatchScript;
  return SlurmStart::kTask;
}

/// Refuses a batch script that asked for several tasks: as one process it would leave them idle.
void check_batch_script(const EnvironmentLookup& lookup) {
  const int tasks = optional_integer(lookup, "SLURM_NTASKS", 1, kMostTasks, 1);
  if (tasks == 1) return;
  refuse_environment(
      "runs in a Slurm batch script that asked for " + std::to_string(tasks) +
      " tasks (SLURM_NTASKS), but not as one of them: start it with `srun mnist-train …`, or ask "
      "for one task (--ntasks=1) and let it start its own processes");
}

/// Returns the identity of a task that Slurm's srun started.
WorkerIdentity slurm_identity(const EnvironmentLookup& lookup) {
  const char* tasks = lookup("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  WorkerIdentity identity;
  identity.launcher = LauncherKind::kSlurm;
  identity.world_size = optional_integer(lookup, tasks, 1, kMostTasks, 1);
  identity.rank = integer_variable(lookup, "SLURM_PROCID", 0, identity.world_size - 1);
  identity.local_rank = integer_variable(lookup, "SLURM_LOCALID", 0, identity.world_size - 1);
  identity.local_world_size = tasks_on_this_node(lookup, identity.local_rank, identity.world_size);
  identity.restart_count = slurm_restart_count(lookup);
  identity.decided_by = std::string("SLURM_PROCID, ") + tasks + ", SLURM_LOCALID";
  choose_slurm_master(lookup, identity);
  if (!lookup("MASTER_PORT")) (void)required_by_slurm(lookup, "SLURM_JOB_ID", "rank 0's port");
  const std::string job =
      lookup("SLURM_JOB_ID").value_or("") + "." + lookup("SLURM_STEP_ID").value_or("");
  choose_port(lookup, "slurm " + job, "SLURM_JOB_ID, SLURM_STEP_ID", identity);
  identity.store_prefix =
      "mnist-train/slurm-" + job + "/" + std::to_string(identity.restart_count) + "/";
  return identity;
}

/// Returns torchrun's run id where a user chose one, else the folder that each agent makes for its
/// attempts.
std::string torchrun_launch(const EnvironmentLookup& lookup) {
  std::string run_id = lookup("TORCHELASTIC_RUN_ID").value_or("none");
  if (run_id != "none") return run_id;
  const std::string file = lookup("TORCHELASTIC_ERROR_FILE").value_or("");
  const std::size_t attempt = file.rfind("/attempt_");
  return attempt == std::string::npos ? "" : file.substr(0, attempt);
}

/// Asks Slurm and the MPIs. Both may answer: srun starts a program that was built with an MPI, or
/// mpirun starts its daemons by srun, one a node, whose processes inherit what Slurm told them.
std::optional<WorkerIdentity> cluster_identity(const EnvironmentLookup& lookup) {
  const auto mpi = mpirun_place(lookup);
  const SlurmStart start = slurm_start(lookup);
  const bool has_step = start == SlurmStart::kTask && lookup("SLURM_STEP_ID");
  if (mpi && !has_step) return with_master(lookup, *mpi);
  if (start != SlurmStart::kTask) {
    if (start == SlurmStart::kBatchScript) check_batch_script(lookup);
    check_half_of_mpich(lookup);
    return std::nullopt;
  }
  WorkerIdentity slurm = slurm_identity(lookup);
  if (!mpi || places_agree(slurm, *mpi)) return slurm;
  const bool is_of_daemon = slurm.local_world_size == 1 && slurm.world_size <= mpi->world_size;
  if (!is_of_daemon) refuse_contradiction(slurm, *mpi);
  return with_master(lookup, *mpi);
}

}  // namespace

std::string first_host(const std::string& list) {
  std::string name;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      name += list[i];
      continue;
    }
    const std::size_t end = list.find_first_of(",-]", i + 1);
    name += list.substr(i + 1, end == std::string::npos ? end : end - i - 1);
    i = std::min(list.find(']', i), list.size());
  }
  return name;
}

int count_of_node(const std::string& list, int node) {
  const char* position = list.data();
  const char* const end = list.data() + list.size();
  while (position != end) {
    int count = 0;
    int nodes = 1;
    auto [stopped, error] = std::from_chars(position, end, count);
    if (error != std::errc()) return 0;
    if (end - stopped > 2 && stopped[0] == '(' && stopped[1] == 'x') {
      const auto repeated = std::from_chars(stopped + 2, end, nodes);
      if (repeated.ec != std::errc() || repeated.ptr == end || *repeated.ptr != ')') return 0;
      stopped = repeated.ptr + 1;
    }
    if (node < nodes) return count;
    node -= nodes;
    if (stopped != end && *stopped != ',') return 0;
    position = stopped == end ? end : stopped + 1;
  }
  return 0;
}

int slurm_restart_count(const EnvironmentLookup& lookup) {
  if (!lookup("SLURM_JOB_ID")) return 0;
  return optional_integer(lookup, "SLURM_RESTART_COUNT", 0, kMostTasks, 0);
}

const char* name_of(LauncherKind kind) {
  static constexpr std::array kNames{"mnist-train", "torchrun", "slurm", "open-mpi", "mpich"};
  return enum_name(kNames, kind);
}

std::optional<WorkerIdentity> identity_from_environment(const EnvironmentLookup& lookup) {
  // MASTER_ADDR alone does not make a worker: clusters often export it for good.
  if (!lookup("RANK") && !lookup("WORLD_SIZE")) return cluster_identity(lookup);
  require_all_variables(lookup, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"},
                        "torchrun --no-python");
  WorkerIdentity identity;
  identity.launcher = LauncherKind::kTorchrun;
  identity.world_size = integer_variable(lookup, "WORLD_SIZE", 1, 1 << 20);
  identity.rank = integer_variable(lookup, "RANK", 0, identity.world_size - 1);
  identity.local_world_size =
      optional_integer(lookup, "LOCAL_WORLD_SIZE", 1, identity.world_size, identity.world_size);
  identity.local_rank = integer_variable(lookup, "LOCAL_RANK", 0, identity.local_world_size - 1);
  identity.master_address = lookup("MASTER_ADDR").value_or("");
  identity.master_port = integer_variable(lookup, "MASTER_PORT", 1, 65535);
  identity.store_served_by_agent = lookup("TORCHELASTIC_USE_AGENT_STORE") == "True";
  identity.restart_count = optional_integer(lookup, "TORCHELASTIC_RESTART_COUNT", 0, 1 << 20, 0);
  identity.launch = torchrun_launch(lookup);
  identity.store_prefix = "mnist-train/" + lookup("TORCHELASTIC_RUN_ID").value_or("none") + "/" +
                          std::to_string(identity.restart_count) + "/";
  identity.decided_by =
      "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT" +
      std::string(identity.store_served_by_agent ? ", TORCHELASTIC_USE_AGENT_STORE" : "");
  for (const char* name :
       {"LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    if (lookup(name)) identity.decided_by += std::string(", ") + name;
  }
  return identity;
}

}  // namespace mnist_train::launch
