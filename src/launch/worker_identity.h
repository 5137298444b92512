#pragma once

#include <optional>
#include <string>

namespace mnist_train::launch {

enum class LauncherKind { kOwn, kTorchrun, kSlurm, kOpenMpi, kMpich };

/// Returns "mnist-train", "torchrun", "slurm", "open-mpi" or "mpich" (also for Intel MPI).
const char* name_of(LauncherKind kind);

/// This process's rank in the run, and the address of the store, which rank 0 serves.
struct WorkerIdentity {
  LauncherKind launcher = LauncherKind::kOwn;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  bool store_served_by_agent = false;  // torchrun's agent serves the store: every rank is a client
  std::string store_prefix;            // run id and restart count, so that attempts share no keys
  int restart_count = 0;
  std::string launch;      // the same in all attempts of one launch; "" if the launcher has no id
  std::string decided_by;  // the variables that the above was read from, for the log
};

/// Returns the identity that torchrun's variables give (our own launcher sets the same ones for its
/// ranks), else those of Slurm, Open MPI, MPICH or Intel MPI; nothing if this process was started
/// by hand or in a shell or batch script of Slurm. Throws Error(kConfig) if the variables are
/// incomplete or contradict each other.
std::optional<WorkerIdentity> identity_from_environment();

/// Returns how often Slurm has requeued this job; 0 outside of Slurm.
int slurm_restart_count();

/// Returns the first host of a list in Slurm's notation: "node[03-05,7],x" -> "node03".
std::string first_host(const std::string& list);

/// Returns a node's number of tasks from a list in Slurm's notation, in which "2(x3),1" stands for
/// 2, 2, 2, 1; 0 past its end.
int count_of_node(const std::string& list, int node);

}  // namespace mnist_train::launch
