#pragma once

namespace mnist_train::launch {

/// Processors this process may use: its affinity mask, cut by the container's CPU quota where there
/// is one. At least 1.
int usable_cores();

/// GPUs that the NVIDIA driver shows this process (CUDA_VISIBLE_DEVICES respected); 0 without a
/// driver. Asks the driver itself, so it costs no LibTorch start-up.
int visible_gpus();

/// Raises the soft limit of open files where it is too low for the descriptors that are handed to
/// workers. Throws Error(kRunFailed) when the hard limit forbids that.
void require_open_files();

}  // namespace mnist_train::launch
