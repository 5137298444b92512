#pragma once

#include <string>

#include "launch/machine.h"
#include "settings/run_config.h"

namespace mnist_train::launch {

/// Where one rank computes and how it communicates with the others.
struct Placement {
  bool cuda = false;
  int device_index = 0;          // of the GPU
  std::string backend = "gloo";  // or "nccl"; a single rank does not use it
  int threads = 1;               // of the rank

  std::string device_name() const;  // "cpu", "cuda:0"
};

/// Returns how many ranks our own launcher starts: `processes_per_node`, the length of `devices` or
/// of `data.train_per_process`. Where the config names none of them: one for each GPU; on CPUs one
/// for each core up to 2, because more share memory bandwidth and gain little. Throws
/// Error(kConfig) when the config asks for GPUs that are not there.
int choose_process_count(const settings::RunConfig& config, const Machine& machine);

/// Chooses device, backend and threads of one rank. When there are more ranks than GPUs, they share
/// them in turn, over Gloo, since NCCL refuses two ranks on one GPU. What the config asks for by
/// name is taken, or refused with Error(kConfig), but never replaced.
Placement choose_placement(const settings::RunConfig& config, const Machine& machine,
                           int local_rank, int local_world_size);

}  // namespace mnist_train::launch
