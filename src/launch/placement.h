#pragma once

#include <string>

#include "settings/run_config.h"

namespace mnist_train::launch {

/// What this machine offers.
struct Machine {
  int cores = 1;
  int gpus = 0;               // that this build can use
  bool lacks_module = false;  // there are GPUs, but the module for them was not built
};

/// Of the machine that this runs on, looked up anew at every call; without loading CUDA's runtime.
Machine this_machine();

/// Where one rank computes and how it talks to the others.
struct Placement {
  bool cuda = false;
  int device_index = 0;          // of the GPU
  std::string backend = "gloo";  // or "nccl"; one rank alone makes no use of it
  int threads = 1;               // of the rank

  std::string device_name() const;  // "cpu", "cuda:0"
};

/// How many ranks our own launcher starts: `processes_per_node`, the length of `devices` or of
/// `data.train_per_process`, or by itself one a GPU, on CPUs one a core up to 2 (more share memory
/// bandwidth and win little). Throws Error(kConfig) when they contradict.
int choose_process_count(const settings::RunConfig& config, const Machine& machine);

/// Device, backend and threads of one rank. More ranks than GPUs share them in turn, over Gloo,
/// since NCCL refuses two ranks on one GPU. What the config asks for by name is taken or refused
/// with Error(kConfig), never replaced.
Placement choose_placement(const settings::RunConfig& config, const Machine& machine,
                           int local_rank, int local_world_size);

}  // namespace mnist_train::launch
