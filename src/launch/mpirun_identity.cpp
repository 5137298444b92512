#include "launch/mpirun_identity.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "launch/launcher_variables.h"

namespace mnist_train::launch {

namespace {

/// What an MPI's mpirun tells its processes, none of which say where rank 0 is.
struct Mpi {
  LauncherKind kind;
  const char* title;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* passes_address;  // the command that does, for several hosts
};

constexpr Mpi kOpenMpi{LauncherKind::kOpenMpi,
                       "Open MPI",
                       "OMPI_COMM_WORLD_RANK",
                       "OMPI_COMM_WORLD_SIZE",
                       "OMPI_COMM_WORLD_LOCAL_RANK",
                       "OMPI_COMM_WORLD_LOCAL_SIZE",
                       "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=PORT …"};

/// Hydra, the launcher of MPICH, Intel MPI and MVAPICH. Slurm's PMI-2 and others set the first two
/// variables as well, but only Hydra the last two.
constexpr Mpi kMpich{LauncherKind::kMpich,
                     "MPICH",
                     "PMI_RANK",
                     "PMI_SIZE",
                     "MPI_LOCALRANKID",
                     "MPI_LOCALNRANKS",
                     "mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT PORT …"};

const Mpi& mpi_of(LauncherKind kind) { return kind == kMpich.kind ? kMpich : kOpenMpi; }

/// Returns whether a process was started with all of these variables ("NAME=value"); false also if
/// it belongs to somebody else.
bool was_started_with(pid_t pid, const std::vector<std::string>& variables) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  std::string text(1, '\0');
  text.append(std::istreambuf_iterator<char>(file), {});
  return std::all_of(variables.begin(), variables.end(), [&](const std::string& variable) {
    return text.find('\0' + variable + '\0') != std::string::npos;
  });
}

/// Returns the process that started all ranks of this host, mpirun or its daemon: the nearest
/// ancestor that is not itself a part of this rank, such as a script that prepares and starts it.
pid_t launcher_of(const EnvironmentLookup& lookup, const Mpi& mpi) {
  std::vector<std::string> own;
  for (const char* name : {mpi.rank, mpi.size, mpi.local_rank, mpi.local_size}) {
    if (const auto value = lookup(name)) own.push_back(std::string(name) + "=" + *value);
  }
  pid_t pid = ::getppid();
  while (pid > 1 && was_started_with(pid, own)) {
    const auto parent = number_in(value_of("/proc/" + std::to_string(pid) + "/status", "PPid"));
    if (!parent) break;
    pid = static_cast<pid_t>(*parent);
  }
  return pid;
}

/// What all processes of one mpirun share, and no others on this machine at this time.
struct MpirunJob {
  std::string name;
  std::string source;  // what it was read from
};

MpirunJob mpirun_job(const EnvironmentLookup& lookup, const Mpi& mpi) {
  if (mpi.kind == LauncherKind::kOpenMpi) {
    for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
      if (const auto value = lookup(name)) return {*value, name};
    }
  }
  if (lookup("MASTER_PORT")) return {};  // needs no name, and daemons on several hosts have none
  return {"child of " + std::to_string(launcher_of(lookup, mpi)),
          "the process id of the parent of all ranks"};
}

/// Returns how many processes this host has. If MPICH does not say, a process that is numbered here
/// as it is among all has all others beside it.
int mpi_local_size(const EnvironmentLookup& lookup, const Mpi& mpi,
                   const WorkerIdentity& identity) {
  if (lookup(mpi.local_size) || mpi.kind == LauncherKind::kOpenMpi) {
    return integer_variable(lookup, mpi.local_size, 1, identity.world_size);
  }
  const int local_rank = integer_variable(lookup, mpi.local_rank, 0, identity.world_size - 1);
  return local_rank == identity.rank ? identity.world_size : local_rank + 1;
}

/// Returns what an MPI says of this process's place, without rank 0's address.
WorkerIdentity mpi_place(const EnvironmentLookup& lookup, const Mpi& mpi) {
  WorkerIdentity identity;
  identity.launcher = mpi.kind;
  identity.world_size = integer_variable(lookup, mpi.size, 1, kMostTasks);
  identity.rank = integer_variable(lookup, mpi.rank, 0, identity.world_size - 1);
  identity.local_world_size = mpi_local_size(lookup, mpi, identity);
  identity.local_rank = integer_variable(lookup, mpi.local_rank, 0, identity.local_world_size - 1);
  identity.decided_by =
      fmt::format("{}, {}, {}, {}", mpi.rank, mpi.size, mpi.local_rank, mpi.local_size);
  return identity;
}

std::string describe(const WorkerIdentity& identity) {
  return fmt::format("rank {} of {} ({})", identity.rank, identity.world_size, identity.decided_by);
}

const char* title_of(LauncherKind kind) {
  return kind == LauncherKind::kSlurm ? "Slurm" : mpi_of(kind).title;
}

}  // namespace

bool places_agree(const WorkerIdentity& one, const WorkerIdentity& other) {
  return one.rank == other.rank && one.world_size == other.world_size;
}

void refuse_contradiction(const WorkerIdentity& one, const WorkerIdentity& other) {
  refuse_environment(fmt::format(
      "{} says {}, {} says {}: start it with one of them alone, or set RANK, "
      "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT",
      title_of(one.launcher), describe(one), title_of(other.launcher), describe(other)));
}

void check_half_of_mpich(const EnvironmentLookup& lookup) {
  int present = 0;
  for (const char* name : {kMpich.rank, kMpich.size, kMpich.local_rank, kMpich.local_size}) {
    present += lookup(name) ? 1 : 0;
  }
  if (present < 2 || lookup(kMpich.size) == "1") return;
  require_all_variables(lookup, {kMpich.rank, kMpich.size, kMpich.local_rank},
                        "MPICH's mpiexec, or any launcher that sets RANK, WORLD_SIZE, LOCAL_RANK, "
                        "MASTER_ADDR and MASTER_PORT");
}

std::optional<WorkerIdentity> mpirun_place(const EnvironmentLookup& lookup) {
  std::optional<WorkerIdentity> open_mpi;
  std::optional<WorkerIdentity> mpich;
  if (lookup(kOpenMpi.rank)) open_mpi = mpi_place(lookup, kOpenMpi);
  if (lookup(kMpich.rank) && lookup(kMpich.size) && lookup(kMpich.local_rank)) {
    mpich = mpi_place(lookup, kMpich);
  }
  if (open_mpi && mpich && !places_agree(*open_mpi, *mpich))
    refuse_contradiction(*open_mpi, *mpich);
  return open_mpi ? open_mpi : mpich;
}

WorkerIdentity with_master(const EnvironmentLookup& lookup, WorkerIdentity identity) {
  const Mpi& mpi = mpi_of(identity.launcher);
  const std::string address = lookup("MASTER_ADDR").value_or("");
  const bool one_host = identity.local_world_size == identity.world_size;
  if (!one_host && (address.empty() || !lookup("MASTER_PORT"))) {
    refuse_environment(
        fmt::format("{} runs {} processes, {} of them here, and does not say where rank 0 is: {}",
                    mpi.title, identity.world_size, identity.local_world_size, mpi.passes_address));
  }
  const MpirunJob job = mpirun_job(lookup, mpi);
  identity.store_prefix = fmt::format("mnist-train/{}-{}/0/", name_of(mpi.kind), job.name);
  choose_port(lookup, fmt::format("{} {}", mpi.title, job.name), job.source, identity);
  if (!address.empty()) {
    identity.master_address = address;
    identity.decided_by += ", MASTER_ADDR";
  }
  return identity;
}

}  // namespace mnist_train::launch
