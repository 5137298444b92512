#include "launch/worker_identity.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <vector>

#include "base/enum_name.h"
#include "base/error.h"

namespace mnist_train::launch {

namespace {

constexpr int kMostTasks = 1 << 20;

[[noreturn]] void refuse(const std::string& message) { throw Error(ExitCode::kConfig, message); }

/// Throws Error(kConfig) that names the variable, what it holds and what it may hold.
int integer_variable(const EnvironmentLookup& lookup, const char* name, int least, int most) {
  const std::string text = lookup(name).value_or("");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    refuse(std::string("environment variable ") + name + ": expected an integer from " +
           std::to_string(least) + " to " + std::to_string(most) + ", found \"" + text + "\"");
  }
  return value;
}

int optional_integer(const EnvironmentLookup& lookup, const char* name, int least, int most,
                     int otherwise) {
  return lookup(name) ? integer_variable(lookup, name, least, most) : otherwise;
}

/// Returns a port that all processes of a job find by themselves and few other jobs share.
int port_from(const std::string& job) {
  constexpr int kFirst = 15000;  // below the ports that systems hand out by themselves
  constexpr std::uint32_t kPorts = 17000;
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char character : job) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 16777619U;
  }
  return kFirst + static_cast<int>(hash % kPorts);
}

/// Takes MASTER_PORT where it is set, else a port that follows from the job.
void choose_port(const EnvironmentLookup& lookup, const std::string& job, const std::string& source,
                 WorkerIdentity& identity) {
  const bool is_set = lookup("MASTER_PORT").has_value();
  identity.master_port =
      is_set ? integer_variable(lookup, "MASTER_PORT", 1, 65535) : port_from(job);
  identity.decided_by += ", " + (is_set ? "MASTER_PORT" : source);
}

std::string required_by_slurm(const EnvironmentLookup& lookup, const char* name,
                              const char* purpose) {
  if (auto value = lookup(name); value && !value->empty()) return *value;
  refuse(std::string("Slurm's variable ") + name + " is not set, but is needed to find " + purpose +
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

/// With --gpu-bind=none every task sees all GPUs of the node, whatever SLURM_GPUS_PER_TASK ("2",
/// "a100:2") says.
bool sees_own_gpus(const EnvironmentLookup& lookup) {
  const auto asked = lookup("SLURM_GPUS_PER_TASK");
  const auto visible = lookup("CUDA_VISIBLE_DEVICES");
  if (!asked || !visible || visible->empty()) return false;
  const auto count = std::count(visible->begin(), visible->end(), ',') + 1;
  return asked->substr(asked->rfind(':') + 1) == std::to_string(count);
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

/// What all processes of one mpirun share, and no others on this machine at this time.
struct MpirunJob {
  std::string name;
  std::string source;  // what it was read from
};

MpirunJob mpirun_job(const EnvironmentLookup& lookup) {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (const auto value = lookup(name)) return {*value, name};
  }
  // On one host they have one parent, too: mpirun or its daemon.
  return {"child of " + std::to_string(::getppid()), "the parent's process id"};
}

/// Returns the identity of a task that Slurm's srun started, or nothing in a shell of salloc and in
/// a batch script of one task.
std::optional<WorkerIdentity> slurm_identity(const EnvironmentLookup& lookup) {
  if (!lookup("SLURM_PROCID")) return std::nullopt;  // a shell of salloc
  const char* tasks = lookup("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const int world_size = optional_integer(lookup, tasks, 1, kMostTasks, 1);
  // A batch script sees the variables of its job, but none of a step.
  if (!lookup("SLURM_STEP_ID") && !lookup("SLURM_STEP_NODELIST")) {
    if (world_size == 1) return std::nullopt;
    refuse("runs in a Slurm batch script that asked for " + std::to_string(world_size) +
           " tasks (" + tasks +
           "), but not as one of them: start it with `srun mnist-train …`, or ask for one task "
           "(--ntasks=1) and let it start its own processes");
  }
  WorkerIdentity identity;
  identity.launcher = LauncherKind::kSlurm;
  identity.world_size = world_size;
  identity.rank = integer_variable(lookup, "SLURM_PROCID", 0, world_size - 1);
  identity.local_rank = integer_variable(lookup, "SLURM_LOCALID", 0, world_size - 1);
  identity.local_world_size = tasks_on_this_node(lookup, identity.local_rank, world_size);
  identity.restart_count = slurm_restart_count(lookup);
  identity.sees_own_gpus = sees_own_gpus(lookup);
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

/// Returns the identity of a process that Open MPI's mpirun started, or nothing in others. On
/// several hosts MASTER_ADDR and MASTER_PORT must say where rank 0 is.
std::optional<WorkerIdentity> open_mpi_identity(const EnvironmentLookup& lookup) {
  if (!lookup("OMPI_COMM_WORLD_RANK")) return std::nullopt;
  const int world_size = integer_variable(lookup, "OMPI_COMM_WORLD_SIZE", 1, kMostTasks);
  WorkerIdentity identity;
  identity.launcher = LauncherKind::kOpenMpi;
  identity.world_size = world_size;
  identity.rank = integer_variable(lookup, "OMPI_COMM_WORLD_RANK", 0, world_size - 1);
  identity.local_world_size = integer_variable(lookup, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, world_size);
  identity.local_rank =
      integer_variable(lookup, "OMPI_COMM_WORLD_LOCAL_RANK", 0, identity.local_world_size - 1);
  identity.decided_by =
      "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK, "
      "OMPI_COMM_WORLD_LOCAL_SIZE";
  const MpirunJob job = mpirun_job(lookup);
  identity.store_prefix = "mnist-train/open-mpi-" + job.name + "/0/";
  const bool one_host = identity.local_world_size == world_size;
  if (!one_host && (!lookup("MASTER_ADDR") || !lookup("MASTER_PORT"))) {
    refuse("Open MPI runs " + std::to_string(world_size) + " processes, " +
           std::to_string(identity.local_world_size) +
           " of them here, and does not say where rank 0 is: mpirun -x MASTER_ADDR=HOST -x "
           "MASTER_PORT=PORT …");
  }
  choose_port(lookup, "open mpi " + job.name, job.source, identity);
  if (const auto address = lookup("MASTER_ADDR")) {
    identity.master_address = *address;
    identity.decided_by += ", MASTER_ADDR";
  }
  return identity;
}

void require_all_variables(const EnvironmentLookup& lookup) {
  std::vector<const char*> present;
  std::vector<const char*> missing;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    (lookup(name) ? present : missing).push_back(name);
  }
  if (missing.empty()) return;
  refuse(
      fmt::format("environment variables {} are set but {} are not: unset them to let "
                  "mnist-train start its own processes, or start it with torchrun "
                  "--no-python",
                  fmt::join(present, ", "), fmt::join(missing, ", ")));
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

std::string describe(const WorkerIdentity& identity) {
  return fmt::format("rank {} of {} ({})", identity.rank, identity.world_size, identity.decided_by);
}

/// Asks Slurm and Open MPI. Both answer where srun starts a program that was built with Open MPI.
std::optional<WorkerIdentity> cluster_identity(const EnvironmentLookup& lookup) {
  auto open_mpi = open_mpi_identity(lookup);
  const bool inside_batch_script = open_mpi && !lookup("SLURM_STEP_ID");
  auto slurm = inside_batch_script ? std::nullopt : slurm_identity(lookup);
  if (!slurm || !open_mpi) return slurm ? slurm : open_mpi;
  if (slurm->rank == open_mpi->rank && slurm->world_size == open_mpi->world_size) return slurm;
  refuse("Slurm says " + describe(*slurm) + ", Open MPI says " + describe(*open_mpi) +
         ": start it with srun alone, or set RANK, WORLD_SIZE, "
         "LOCAL_RANK, MASTER_ADDR and MASTER_PORT");
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

const char* name_of(LauncherKind kind) {
  static constexpr std::array kNames{"mnist-train", "torchrun", "slurm", "open-mpi"};
  return enum_name(kNames, kind);
}

std::optional<WorkerIdentity> identity_from_environment(const EnvironmentLookup& lookup) {
  // MASTER_ADDR alone does not make a worker: clusters often export it for good.
  if (!lookup("RANK") && !lookup("WORLD_SIZE")) return cluster_identity(lookup);
  require_all_variables(lookup);
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
