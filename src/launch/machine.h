#pragma once

namespace mnist_train::launch {

/// The module that lies beside the worker's executable where GPUs can be used.
inline constexpr const char* kCudaModule = "libmnist-train-cuda.so";

/// What this machine offers to ranks.
struct Machine {
  int cores = 1;
  int gpus = 0;               // that this build can use
  bool lacks_module = false;  // there are GPUs, but the module for them was not built
};

/// Returns what this machine offers now. Does not load CUDA's runtime.
Machine this_machine();

/// Returns how many processors this process may use: its affinity mask, cut by the container's CPU
/// quota where there is one. At least 1.
int usable_cores();

/// Returns how many GPUs the NVIDIA driver shows this process (CUDA_VISIBLE_DEVICES respected); 0
/// without a driver. Asks the driver itself, which takes less time than loading LibTorch.
int visible_gpus();

/// Raises the soft limit of open files where it is too low for the descriptors that workers
/// inherit. Throws Error(kRunFailed) when the hard limit forbids that.
void require_open_files();

}  // namespace mnist_train::launch
