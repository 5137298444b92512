#pragma once

#include <optional>

#include "base/version.h"
#include "doctor/driver.h"
#include "doctor/finding.h"

namespace mnist_train::doctor {

/// GPUs, their driver against the CUDA that this program was built with, and whether they reach
/// each other's memory.
Findings check_gpus(const Driver& driver, const BuildInfo& build);

/// /dev/shm, where NCCL exchanges gradients between GPUs that do not reach each other; `free_bytes`
/// of it, if it is there. What processes on CPUs share does not lie in it.
Finding check_shared_memory(const Driver& driver, std::optional<double> free_bytes);

/// The ways that NCCL can take between processes here: peer access, shared memory, InfiniBand,
/// sockets.
Finding check_nccl(const Driver& driver, const BuildInfo& build);

}  // namespace mnist_train::doctor
