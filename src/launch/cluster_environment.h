#pragma once

#include <string>

#include "launch/worker_identity.h"

namespace mnist_train::launch {

/// Of a task that Slurm's srun started; nothing otherwise: in a shell of salloc, in a batch script
/// of one task. Throws Error(kConfig) naming the variable that is missing or wrong, and for a batch
/// script that asked for several tasks but does not use srun.
std::optional<WorkerIdentity> slurm_identity(const EnvironmentLookup& lookup);

/// How often Slurm has put this job back into its queue; 0 outside of Slurm.
int slurm_restart_count(const EnvironmentLookup& lookup = environment_variable);

/// Of a process that Open MPI's mpirun started. On several hosts MASTER_ADDR and MASTER_PORT must
/// say where rank 0 is. Throws Error(kConfig).
std::optional<WorkerIdentity> open_mpi_identity(const EnvironmentLookup& lookup);

/// The first name of a list as Slurm writes it: "node[03-05,7],x" -> "node03".
std::string first_host(const std::string& list);

/// The n-th number of a list as Slurm writes it: "2(x3),1" is 2, 2, 2, 1; 0 beyond its end.
int count_of_node(const std::string& list, int node);

/// A port of 15000 ... 31999 that follows from what all tasks of a step know and few others share.
int port_from(const std::string& text);

}  // namespace mnist_train::launch
