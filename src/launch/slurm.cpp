#include <algorithm>
#include <charconv>
#include <string>

#include "base/error.h"
#include "launch/cluster_environment.h"

namespace mnist_train::launch {

namespace {

constexpr int kMostTasks = 1 << 20;

/// Variables of the step count; those of the job are what a batch script sees, too.
bool is_step(const EnvironmentLookup& lookup) {
  return lookup("SLURM_STEP_ID") || lookup("SLURM_STEP_NODELIST");
}

std::string required(const EnvironmentLookup& lookup, const char* name, const char* what_for) {
  if (auto value = lookup(name); value && !value->empty()) return *value;
  throw Error(ExitCode::kConfig, std::string("Slurm's variable ") + name + " is not set; it is " +
                                     what_for +
                                     ": start the tasks with srun, or set MASTER_ADDR and "
                                     "MASTER_PORT");
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

/// With --gpu-bind=none every task sees all GPUs of the node, whatever SLURM_GPUS_PER_TASK ("2",
/// "a100:2") says.
bool sees_own_gpus(const EnvironmentLookup& lookup) {
  const auto asked = lookup("SLURM_GPUS_PER_TASK");
  const auto visible = lookup("CUDA_VISIBLE_DEVICES");
  if (!asked || !visible || visible->empty()) return false;
  const auto count = std::count(visible->begin(), visible->end(), ',') + 1;
  return asked->substr(asked->rfind(':') + 1) == std::to_string(count);
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
    if (stopped != end && *stopped++ != ',') return 0;
    position = stopped;
  }
  return 0;
}

int slurm_restart_count(const EnvironmentLookup& lookup) {
  if (!lookup("SLURM_JOB_ID")) return 0;
  return optional_integer(lookup, "SLURM_RESTART_COUNT", 0, kMostTasks, 0);
}

std::optional<WorkerIdentity> slurm_identity(const EnvironmentLookup& lookup) {
  if (!lookup("SLURM_PROCID")) return std::nullopt;  // a shell of salloc
  const char* tasks = lookup("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const int world_size = optional_integer(lookup, tasks, 1, kMostTasks, 1);
  if (!is_step(lookup)) {  // a batch script
    if (world_size == 1) return std::nullopt;
    throw Error(ExitCode::kConfig,
                "runs in a Slurm batch script that asked for " + std::to_string(world_size) +
                    " tasks (" + tasks +
                    "), but not as one of them: start it with `srun mnist-train …`, or ask for "
                    "one task (--ntasks=1) and let it start its own processes");
  }
  WorkerIdentity identity;
  identity.launcher = LauncherKind::kSlurm;
  identity.world_size = world_size;
  identity.rank = integer_variable(lookup, "SLURM_PROCID", 0, world_size - 1);
  identity.local_rank = integer_variable(lookup, "SLURM_LOCALID", 0, world_size - 1);
  identity.local_world_size = tasks_on_this_node(lookup, identity.local_rank, world_size);
  identity.restart_count = slurm_restart_count(lookup);
  identity.sees_own_gpus = sees_own_gpus(lookup);
  const bool one_host = identity.local_world_size == world_size;
  identity.master_address = lookup("MASTER_ADDR").value_or("");
  identity.decided_by = std::string("SLURM_PROCID, ") + tasks + ", SLURM_LOCALID";
  if (!identity.master_address.empty()) {
    identity.decided_by += ", MASTER_ADDR";
  } else if (one_host) {
    identity.master_address = "127.0.0.1";
  } else {
    identity.master_address =
        first_host(required(lookup, "SLURM_STEP_NODELIST", "where rank 0's host is read from"));
    identity.decided_by += ", SLURM_STEP_NODELIST";
  }
  const std::string job =
      lookup("SLURM_JOB_ID").value_or("") + "." + lookup("SLURM_STEP_ID").value_or("");
  if (lookup("MASTER_PORT")) {
    identity.master_port = integer_variable(lookup, "MASTER_PORT", 1, 65535);
    identity.decided_by += ", MASTER_PORT";
  } else {
    (void)required(lookup, "SLURM_JOB_ID", "what the port is made of");
    identity.master_port = port_from("slurm " + job);
    identity.decided_by += ", SLURM_JOB_ID, SLURM_STEP_ID";
  }
  identity.store_prefix =
      "mnist-train/slurm-" + job + "/" + std::to_string(identity.restart_count) + "/";
  return identity;
}

}  // namespace mnist_train::launch
