#pragma once

#include <optional>
#include <string>

#include "launch/environment.h"

namespace mnist_train::launch {

enum class LauncherKind { kOwn, kTorchrun, kSlurm, kOpenMpi };

/// "mnist-train", "torchrun", "slurm", "open-mpi".
const char* name_of(LauncherKind kind);

/// Which of the run's processes this is, and where they meet.
struct WorkerIdentity {
  LauncherKind launcher = LauncherKind::kOwn;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  bool store_served_by_agent = false;  // torchrun's agent serves the store: every rank is a client
  std::string store_prefix;  // run id and restart count; keys of one attempt never meet another's
  int restart_count = 0;
  std::string launch;  // what all attempts of one launch share; "" where the launcher does not say
  bool sees_own_gpus = false;  // no other process of the run uses the GPUs that this one sees
  std::string decided_by;      // for the log: which variables said so
};

/// What the variables of torchrun say (our own launcher sets the same ones for its ranks), else
/// those of Slurm, else those of Open MPI; nothing when this process was started by hand. Throws
/// Error(kConfig) when they are incomplete or contradict each other.
std::optional<WorkerIdentity> identity_from_environment(
    const EnvironmentLookup& lookup = environment_variable);

}  // namespace mnist_train::launch
