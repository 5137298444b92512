#pragma once

#include <optional>
#include <string>

#include "launch/worker_identity.h"

namespace mnist_train::launch {

/// Reads an integer from a variable. Throws Error(kConfig) that names the variable, what it holds
/// and what it may hold.
int integer_variable(const EnvironmentLookup& lookup, const char* name, int least, int most);

/// Reads an integer as above, or returns `otherwise` where the variable is not set.
int optional_integer(const EnvironmentLookup& lookup, const char* name, int least, int most,
                     int otherwise);

/// Returns the identity of a task that Slurm's srun started, or nothing in a shell of salloc and in
/// a batch script of one task. Throws Error(kConfig) that names a variable that is missing or
/// wrong, and for a batch script that asked for several tasks but does not use srun.
std::optional<WorkerIdentity> slurm_identity(const EnvironmentLookup& lookup);

/// Returns how often Slurm has put this job back into its queue; 0 outside of Slurm.
int slurm_restart_count(const EnvironmentLookup& lookup = environment_variable);

/// Returns the identity of a process that Open MPI's mpirun started, or nothing in others. On
/// several hosts MASTER_ADDR and MASTER_PORT must say where rank 0 is. Throws Error(kConfig).
std::optional<WorkerIdentity> open_mpi_identity(const EnvironmentLookup& lookup);

/// Returns the first name of a list as Slurm writes it: "node[03-05,7],x" -> "node03".
std::string first_host(const std::string& list);

/// Returns the number of one node in a list as Slurm writes it, "2(x3),1" for 2, 2, 2, 1; 0 beyond
/// its end.
int count_of_node(const std::string& list, int node);

}  // namespace mnist_train::launch
