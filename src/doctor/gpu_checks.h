#pragma once

#include "base/version.h"
#include "doctor/driver.h"
#include "doctor/finding.h"

namespace mnist_train::doctor {

/// GPUs, their driver against the CUDA that this program was built with, and whether they reach
/// each other's memory.
Findings check_gpus(const Driver& driver, const BuildInfo& build);

/// The ways that NCCL can take between processes here: peer access, shared memory, InfiniBand,
/// sockets.
Finding check_nccl(const Driver& driver, const BuildInfo& build);

}  // namespace mnist_train::doctor
