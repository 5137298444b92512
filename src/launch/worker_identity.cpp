#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/hash.h"
#include "base/print.h"
#include "base/system.h"
#include "launch/job.h"

namespace mnist_train::launch {

namespace {

using Names = std::initializer_list<const char*>;

constexpr int kMaxTasks = 1 << 20;
constexpr const char* kAnyLauncher = "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT";

std::optional<std::string> variable(const char* name) { return environment_variable(name); }

/// Returns the variable's value. If the variable is not set, returns `fallback`, if given.
int integer_variable(const char* name, int min, int max, std::optional<int> fallback = {}) {
  const auto given = variable(name);
  if (fallback && !given) return *fallback;
  const std::string text = given.value_or("");
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    refuse("environment variable {}: expected an integer from {} to {}, {}", name, min, max,
           given ? "found \"" + text + "\"" : "but it is not set");
  }
  return value;
}

/// Returns the variables that are set or, if `are_set` is false, not set.
std::vector<const char*> select_variables(bool are_set, Names names) {
  std::vector<const char*> found;
  std::ranges::copy_if(names, std::back_inserter(found),
                       [&](const char* name) { return variable(name).has_value() == are_set; });
  return found;
}

/// Throws unless all of the variables are set. `launcher` names a launcher that sets them.
void require_all(Names names, const std::string& launcher) {
  const auto missing = select_variables(false, names);
  if (missing.empty()) return;
  refuse(
      "some environment variables of a launcher are set ({}), but others are not ({}): unset them "
      "all to let mnist-train start its own processes, or start it with {}",
      fmt::join(select_variables(true, names), ", "), fmt::join(missing, ", "), launcher);
}

/// The variables through which a launcher tells a process its rank.
struct RankVariables {
  LauncherKind kind;
  const char* title;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;

  std::vector<const char*> present_names() const {
    return select_variables(true, {rank, size, local_rank, local_size});
  }
};

constexpr RankVariables kTorchrun{
    LauncherKind::kTorchrun, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};

constexpr RankVariables kOpenMpi{LauncherKind::kOpenMpi,       "Open MPI",
                                 "OMPI_COMM_WORLD_RANK",       "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};

/// Hydra, the launcher of MPICH, Intel MPI and MVAPICH. Slurm's PMI-2 and other launchers also set
/// the first two variables, but only Hydra sets the last two.
constexpr RankVariables kMpich{LauncherKind::kMpich, "MPICH",           "PMI_RANK",
                               "PMI_SIZE",           "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

/// Returns the number of processes on this host. If the launcher sets neither it nor the local
/// rank, it is 1, as in a Kubernetes pod. If only the local rank is set, assumes that there is one
/// host if it equals the rank, and otherwise that no local rank is higher.
int local_size(const RankVariables& names, int rank, int size) {
  if (variable(names.local_size)) return integer_variable(names.local_size, 1, size);
  if (!variable(names.local_rank)) return 1;
  const int local_rank = integer_variable(names.local_rank, 0, size - 1);
  return local_rank == rank ? size : local_rank + 1;
}

/// Reads this process's rank from a launcher's variables, without rank 0's address.
WorkerIdentity identity_from(const RankVariables& names) {
  WorkerIdentity identity;
  identity.launcher = names.kind;
  identity.world_size = integer_variable(names.size, 1, kMaxTasks);
  identity.rank = integer_variable(names.rank, 0, identity.world_size - 1);
  identity.local_world_size = local_size(names, identity.rank, identity.world_size);
  const bool is_alone_here = identity.local_world_size == 1;
  identity.local_rank = integer_variable(names.local_rank, 0, identity.local_world_size - 1,
                                         is_alone_here ? std::optional(0) : std::nullopt);
  identity.detected_from = fmt::format("{}", fmt::join(names.present_names(), ", "));
  return identity;
}

/// Returns a port that is the same for all processes of a job and that few other jobs share.
int port_from(const std::string& job) {
  constexpr int kFirst = 15000;  // below the ephemeral ports
  constexpr unsigned long kPorts = 17000;
  return kFirst + static_cast<int>(std::stoul(hash_hex(job).substr(0, 8), nullptr, 16) % kPorts);
}

bool has_address() { return !variable("MASTER_ADDR").value_or("").empty(); }

/// Uses MASTER_ADDR and MASTER_PORT if they are set. Without MASTER_PORT, derives the port from the
/// job's name, which was read from `source`.
void choose_master(const std::string& job, const std::string& source, WorkerIdentity& identity) {
  if (has_address()) {
    identity.master_address = *variable("MASTER_ADDR");
    identity.detected_from += ", MASTER_ADDR";
  }
  const bool is_set = variable("MASTER_PORT").has_value();
  identity.master_port = is_set ? integer_variable("MASTER_PORT", 1, 65535) : port_from(job);
  identity.detected_from += ", " + (is_set ? "MASTER_PORT" : source);
}

bool ranks_agree(const WorkerIdentity& one, const WorkerIdentity& other) {
  return one.rank == other.rank && one.world_size == other.world_size;
}

const RankVariables& variables_of(LauncherKind mpi) {
  return mpi == LauncherKind::kMpich ? kMpich : kOpenMpi;
}

[[noreturn]] void refuse_contradiction(const WorkerIdentity& one, const WorkerIdentity& other) {
  const auto claim = [](const WorkerIdentity& identity) {
    const bool is_slurm = identity.launcher == LauncherKind::kSlurm;
    return fmt::format("{} says rank {} of {} ({})",
                       is_slurm ? "Slurm" : variables_of(identity.launcher).title, identity.rank,
                       identity.world_size, identity.detected_from);
  };
  refuse("{}, {}: use only one of them, or set {}", claim(one), claim(other), kAnyLauncher);
}

// Open MPI and MPICH.

/// Reads this process's rank from the variables of Open MPI or, failing that, of MPICH.
std::optional<WorkerIdentity> mpi_rank() {
  std::optional<WorkerIdentity> open_mpi;
  std::optional<WorkerIdentity> mpich;
  if (variable(kOpenMpi.rank)) open_mpi = identity_from(kOpenMpi);
  if (variable(kMpich.rank) && variable(kMpich.size) && variable(kMpich.local_rank)) {
    mpich = identity_from(kMpich);
  }
  if (open_mpi && mpich && !ranks_agree(*open_mpi, *mpich)) {
    refuse_contradiction(*open_mpi, *mpich);
  }
  return open_mpi ? open_mpi : mpich;
}

/// Throws if MPICH's variables are incomplete. Ignores a single variable, and the PMI variables of
/// a single process, such as a shell in Slurm.
void check_partial_mpich() {
  if (kMpich.present_names().size() < 2 || variable(kMpich.size) == "1") return;
  require_all({kMpich.rank, kMpich.size, kMpich.local_rank},
              std::string("MPICH's mpiexec, or any launcher that sets ") + kAnyLauncher);
}

/// Returns whether a process was started with all of these variables ("NAME=value"); also returns
/// false if the process belongs to another user.
bool was_started_with(pid_t pid, const std::vector<std::string>& variables) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  std::string text(1, '\0');
  text.append(std::istreambuf_iterator<char>(file), {});
  return std::ranges::all_of(variables, [&](const std::string& entry) {
    return text.find('\0' + entry + '\0') != std::string::npos;
  });
}

/// Returns the process that started all ranks on this host, mpirun or its daemon: the nearest
/// ancestor outside this rank. A script that starts this process is part of the rank.
pid_t launcher_of(const RankVariables& mpi) {
  std::vector<std::string> our_variables;
  for (const char* name : mpi.present_names()) {
    our_variables.push_back(std::string(name) + "=" + *variable(name));
  }
  pid_t pid = ::getppid();
  while (pid > 1 && was_started_with(pid, our_variables)) {
    const auto parent = number_in(value_of("/proc/" + std::to_string(pid) + "/status", "PPid"));
    if (!parent) break;
    pid = static_cast<pid_t>(*parent);
  }
  return pid;
}

/// Returns a name shared by all processes of one mpirun, but by no others running on this machine,
/// and the source of the name. Empty if MASTER_PORT is set and the launcher provides no name.
std::pair<std::string, std::string> mpirun_job(const RankVariables& mpi) {
  if (mpi.kind == LauncherKind::kOpenMpi) {
    for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
      if (const auto value = variable(name)) return {*value, name};
    }
  }
  if (variable("MASTER_PORT")) return {};  // ranks on several hosts have different parents
  return {"child of " + std::to_string(launcher_of(mpi)),
          "the process ID of the parent of all ranks"};
}

/// Adds rank 0's address, which MPI launchers do not pass to their processes.
WorkerIdentity with_master(WorkerIdentity identity) {
  const RankVariables& mpi = variables_of(identity.launcher);
  const bool one_host = identity.local_world_size == identity.world_size;
  if (!one_host && (!has_address() || !variable("MASTER_PORT"))) {
    refuse("{} runs {} processes, {} of them here, but does not pass on rank 0's address: use {}",
           mpi.title, identity.world_size, identity.local_world_size,
           mpi.kind == LauncherKind::kMpich
               ? "mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT PORT …"
               : "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=PORT …");
  }
  const auto [job, source] = mpirun_job(mpi);
  identity.store_prefix = fmt::format("mnist-train/{}-{}/0/", name_of(mpi.kind), job);
  choose_master(fmt::format("{} {}", mpi.title, job), source, identity);
  return identity;
}

// Slurm.

std::string slurm_variable(const char* name, const char* purpose) {
  if (auto value = variable(name); value && !value->empty()) return *value;
  refuse(
      "Slurm's variable {} is not set, but is needed to find {}: start the tasks with srun, or set "
      "MASTER_ADDR and MASTER_PORT",
      name, purpose);
}

int tasks_on_this_node(int local_rank, int world_size) {
  const int node = integer_variable("SLURM_NODEID", 0, kMaxTasks, 0);
  const std::string tasks = variable("SLURM_STEP_TASKS_PER_NODE").value_or("");
  if (const int count = tasks_on_node(tasks, node); count > local_rank) return count;
  const std::string list = variable("SLURM_STEP_NODELIST").value_or("");
  const bool one_node = integer_variable("SLURM_STEP_NUM_NODES", 1, kMaxTasks, 1) == 1 &&
                        integer_variable("SLURM_NNODES", 1, kMaxTasks, 1) == 1 &&
                        list.find_first_of(",[") == std::string::npos;
  return one_node ? world_size : local_rank + 1;
}

/// How Slurm started this process. Also kShell if Slurm did not start it.
enum class SlurmStart { kShell, kBatchScript, kTask };

/// A shell may have been started by salloc, with only the job's variables, or be the job's
/// interactive step, which salloc starts like a task with a reserved step number. A process that
/// joined a job from outside is in the extern step. SLURM_JOB_NAME does not distinguish shells from
/// srun's tasks, which inherit it.
SlurmStart slurm_start() {
  const auto step = variable("SLURM_STEP_ID");
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return step && std::find(names.begin(), names.end(), *step) != names.end();
  };
  if (!variable("SLURM_PROCID")) return SlurmStart::kShell;
  if (is_one_of({"4294967290", "interactive", "4294967292", "extern"})) return SlurmStart::kShell;
  const bool has_step = step || variable("SLURM_STEP_NODELIST");
  if (!has_step || is_one_of({"4294967291", "batch"})) return SlurmStart::kBatchScript;
  return SlurmStart::kTask;
}

/// Throws if a batch script requested multiple tasks: a single process would leave the others idle.
void check_batch_script() {
  const int tasks = integer_variable("SLURM_NTASKS", 1, kMaxTasks, 1);
  if (tasks == 1) return;
  refuse(
      "this Slurm batch script asked for {} tasks (SLURM_NTASKS), but mnist-train was not started "
      "as one of them: start it with `srun mnist-train …`, or ask for one task (--ntasks=1) and "
      "let it start its own processes",
      tasks);
}

/// Returns the identity of a task that srun started.
WorkerIdentity slurm_identity() {
  const char* tasks = variable("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  WorkerIdentity identity;
  identity.launcher = LauncherKind::kSlurm;
  identity.world_size = integer_variable(tasks, 1, kMaxTasks, 1);
  identity.rank = integer_variable("SLURM_PROCID", 0, identity.world_size - 1);
  identity.local_rank = integer_variable("SLURM_LOCALID", 0, identity.world_size - 1);
  identity.local_world_size = tasks_on_this_node(identity.local_rank, identity.world_size);
  identity.restart_count = slurm_restart_count();
  identity.detected_from = fmt::format("SLURM_PROCID, {}, SLURM_LOCALID", tasks);
  if (!has_address() && identity.local_world_size != identity.world_size) {
    identity.master_address = first_host(slurm_variable("SLURM_STEP_NODELIST", "rank 0's host"));
    identity.detected_from += ", SLURM_STEP_NODELIST";
  }
  if (!variable("MASTER_PORT")) (void)slurm_variable("SLURM_JOB_ID", "rank 0's port");
  const std::string job =
      variable("SLURM_JOB_ID").value_or("") + "." + variable("SLURM_STEP_ID").value_or("");
  choose_master("slurm " + job, "SLURM_JOB_ID, SLURM_STEP_ID", identity);
  identity.store_prefix = fmt::format("mnist-train/slurm-{}/{}/", job, identity.restart_count);
  return identity;
}

/// Reads the identity from the variables of Slurm and MPI. Both may be set: srun may start a
/// program built with MPI, or mpirun may use srun to start one daemon per node, and the daemons'
/// child processes inherit Slurm's variables.
std::optional<WorkerIdentity> cluster_identity() {
  const auto mpi = mpi_rank();
  const SlurmStart start = slurm_start();
  const bool has_step = start == SlurmStart::kTask && variable("SLURM_STEP_ID");
  if (mpi && !has_step) return with_master(*mpi);
  if (start != SlurmStart::kTask) {
    if (start == SlurmStart::kBatchScript) check_batch_script();
    check_partial_mpich();
    return std::nullopt;
  }
  WorkerIdentity slurm = slurm_identity();
  if (!mpi || ranks_agree(slurm, *mpi)) return slurm;
  const bool describes_daemon = slurm.local_world_size == 1 && slurm.world_size <= mpi->world_size;
  if (!describes_daemon) refuse_contradiction(slurm, *mpi);
  return with_master(*mpi);
}

// torchrun.

WorkerIdentity torchrun_identity() {
  require_all({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}, "torchrun --no-python");
  if (!has_address())
    refuse("environment variable MASTER_ADDR: expected rank 0's host, found \"\"");
  WorkerIdentity identity = identity_from(kTorchrun);
  identity.master_address = *variable("MASTER_ADDR");
  identity.master_port = integer_variable("MASTER_PORT", 1, 65535);
  identity.store_served_by_agent = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  identity.restart_count = integer_variable("TORCHELASTIC_RESTART_COUNT", 0, 1 << 20, 0);
  const std::string run_id = variable("TORCHELASTIC_RUN_ID").value_or("none");
  identity.launch = run_id;
  if (run_id == "none") {  // the user chose none: use the folder that each agent creates
    const std::string file = variable("TORCHELASTIC_ERROR_FILE").value_or("");
    const std::size_t attempt = file.rfind("/attempt_");
    identity.launch = attempt == std::string::npos ? "" : file.substr(0, attempt);
  }
  identity.store_prefix = fmt::format("mnist-train/{}/{}/", run_id, identity.restart_count);
  const auto read =
      select_variables(true, {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
                              "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"});
  identity.detected_from += fmt::format(", {}", fmt::join(read, ", "));
  return identity;
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

int tasks_on_node(const std::string& list, int node) {
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');) {
    const std::size_t times = item.find("(x");
    const auto count = number_in(item);
    const auto nodes = times == std::string::npos ? 1 : number_in(item.substr(times + 2));
    if (!count || !nodes) return 0;
    if (node < *nodes) return static_cast<int>(*count);
    node -= static_cast<int>(*nodes);
  }
  return 0;
}

int slurm_restart_count() {
  if (!variable("SLURM_JOB_ID")) return 0;
  return integer_variable("SLURM_RESTART_COUNT", 0, kMaxTasks, 0);
}

const char* name_of(LauncherKind kind) {
  static constexpr std::array kNames{"mnist-train", "torchrun", "slurm", "open-mpi", "mpich"};
  return enum_name(kNames, kind);
}

std::optional<WorkerIdentity> identity_from_environment() {
  // MASTER_ADDR alone does not indicate a worker, because clusters often export it permanently.
  if (!variable("RANK") && !variable("WORLD_SIZE")) return cluster_identity();
  return torchrun_identity();
}

}  // namespace mnist_train::launch
