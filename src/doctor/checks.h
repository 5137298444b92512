#pragma once

#include <optional>

#include "base/version.h"
#include "doctor/driver.h"
#include "doctor/finding.h"
#include "settings/run_config.h"

/// The single checks of the doctor. Each returns what it found, and throws nothing.
namespace mnist_train::doctor {

/// Checks the processor, the cores that this process may use, and whether it computes bf16.
Finding check_processor();

/// Checks how much memory is free.
Finding check_memory();

/// Checks the limits on open files, processes and locked memory.
Findings check_limits();

/// Checks that the clock is later than the program's own file, and synchronised.
Finding check_clock();

/// Checks the GPUs, their driver against the CUDA that this program was built with, and whether
/// they can access each other's memory.
Findings check_gpus(const Driver& driver, const BuildInfo& build);

/// Checks /dev/shm, through which NCCL exchanges gradients between GPUs that cannot access each
/// other's memory. `free_bytes` is its free space, if it is there. CPU ranks do not use it.
Finding check_shared_memory(const Driver& driver, std::optional<double> free_bytes);

/// Checks which transports NCCL can use here: peer access, shared memory, InfiniBand, sockets.
Finding check_nccl(const Driver& driver, const BuildInfo& build);

/// Checks that processes of this host can connect to each other.
Finding check_loopback();

/// Checks the address that other hosts would use for this one, and the variables that name it.
Findings check_network();

/// Checks which launcher's variables are set, and whether they are complete.
Finding check_launcher();

/// Checks where runs go: `output`, or runs/ in the working directory. Writes and removes a file
/// there, or in the nearest folder above it that exists.
Finding check_run_folder(const settings::RunConfig& config);

/// Checks the data that the config asks for, and the data sets that are found by name.
Findings check_data(const settings::RunConfig& config);

/// Starts real workers as a run does, two on CPUs and one for each GPU where there are some. They
/// load LibTorch, connect, add up tensors and measure how long it takes. Must be called after
/// launch::block_supervised_signals.
Findings check_workers(const settings::RunConfig& config, const Driver& driver);

}  // namespace mnist_train::doctor
