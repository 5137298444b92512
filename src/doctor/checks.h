#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/version.h"
#include "doctor/doctor.h"
#include "settings/run_config.h"

namespace mnist_train::doctor {

/// Returns what `check` finds. An Error that it throws is a problem with this topic and remedy.
template <class Check>
Finding problem_if_throws(const char* topic, const char* remedy, const Check& check) {
  try {
    return check();
  } catch (const Error& error) {
    return {topic, Verdict::kProblem, error.what(), remedy};
  }
}

/// Returns a number of bytes in decimal units: "1.2 GB", "12 GB", "431 kB".
std::string bytes_text(double bytes);

/// A GPU as the NVIDIA driver describes it.
struct Gpu {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  std::uint64_t memory_bytes = 0;
};

/// What the NVIDIA driver tells through its own library, without any part of CUDA.
struct Driver {
  std::string kernel_version;  // "580.65.06"; empty: no kernel module is loaded
  bool library = false;        // libcuda.so.1 is there
  std::string error;           // why it does not work; empty: it does
  int cuda_version = 0;        // the newest that it supports: 13000 is 13.0
  std::vector<Gpu> gpus;       // those that CUDA_VISIBLE_DEVICES shows
  std::vector<std::pair<int, int>> without_peer_access;  // pairs of GPUs
  int gpus_on_bus = 0;  // NVIDIA's display and 3D controllers on PCI
};

/// Asks the driver of this machine.
Driver ask_driver();

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

/// Checks whether files can be locked and folders synced where runs go and in the user's cache, by
/// a file of its own.
Finding check_file_locks(const settings::RunConfig& config);

/// Checks the data that the config asks for, and the data sets that are found by name.
Findings check_data(const settings::RunConfig& config);

/// Starts real workers as a run does, two on CPUs and one for each GPU where there are some. They
/// load LibTorch, connect, add up tensors and measure how long it takes. Must be called after
/// launch::block_supervised_signals.
Findings check_workers(const settings::RunConfig& config, const Driver& driver);

}  // namespace mnist_train::doctor
