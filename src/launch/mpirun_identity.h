#pragma once

#include <optional>

#include "launch/worker_identity.h"

namespace mnist_train::launch {

/// Returns this process's place by the variables of Open MPI, else by those of MPICH, without rank
/// 0's address; nothing if neither started it. Throws Error(kConfig) if they are wrong or
/// contradict each other.
std::optional<WorkerIdentity> mpirun_place(const EnvironmentLookup& lookup);

/// Adds rank 0's address to a place. Throws Error(kConfig) if there are several hosts and
/// MASTER_ADDR and MASTER_PORT do not say it.
WorkerIdentity with_master(const EnvironmentLookup& lookup, WorkerIdentity identity);

/// Refuses a process that MPICH's variables place among others, but not completely: throws
/// Error(kConfig). One of them alone says nothing, nor does the PMI of a single process, such as
/// that of a shell in Slurm.
void check_half_of_mpich(const EnvironmentLookup& lookup);

/// Returns whether two launchers give this process the same rank of as many.
bool places_agree(const WorkerIdentity& one, const WorkerIdentity& other);

/// Throws Error(kConfig) that says what each of two launchers says.
[[noreturn]] void refuse_contradiction(const WorkerIdentity& one, const WorkerIdentity& other);

}  // namespace mnist_train::launch
