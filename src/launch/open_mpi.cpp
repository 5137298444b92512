#include <unistd.h>

#include <cstdint>

#include "base/error.h"
#include "launch/cluster_environment.h"

namespace mnist_train::launch {

namespace {

constexpr int kMostTasks = 1 << 20;

struct Job {
  std::string name;
  std::string decided_by;
};

/// What all processes of one mpirun share, and no others on this machine at this time. On one host
/// they have one parent, too: mpirun or its daemon.
Job job_of(const EnvironmentLookup& lookup) {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (const auto value = lookup(name)) return {*value, name};
  }
  return {"child of " + std::to_string(::getppid()), "the parent's process id"};
}

}  // namespace

int port_from(const std::string& text) {
  constexpr int kFirst = 15000;  // below the ports that systems hand out by themselves
  constexpr std::uint32_t kPorts = 17000;
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char character : text) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 16777619U;
  }
  return kFirst + static_cast<int>(hash % kPorts);
}

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
  const Job job = job_of(lookup);
  identity.store_prefix = "mnist-train/open-mpi-" + job.name + "/0/";
  const bool one_host = identity.local_world_size == world_size;
  if (!one_host && (!lookup("MASTER_ADDR") || !lookup("MASTER_PORT"))) {
    throw Error(ExitCode::kConfig,
                "Open MPI runs " + std::to_string(world_size) + " processes, " +
                    std::to_string(identity.local_world_size) +
                    " of them here, and does not say where rank 0 is: mpirun -x MASTER_ADDR=HOST "
                    "-x MASTER_PORT=PORT …");
  }
  if (lookup("MASTER_PORT")) {
    identity.master_port = integer_variable(lookup, "MASTER_PORT", 1, 65535);
    identity.decided_by += ", MASTER_PORT";
  } else {
    identity.master_port = port_from("open mpi " + job.name);
    identity.decided_by += ", " + job.decided_by;
  }
  identity.master_address = lookup("MASTER_ADDR").value_or("127.0.0.1");
  if (lookup("MASTER_ADDR")) identity.decided_by += ", MASTER_ADDR";
  return identity;
}

}  // namespace mnist_train::launch
