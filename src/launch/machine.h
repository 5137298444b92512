#pragma once

namespace mnist_train::launch {

/// Processors this process may use: its affinity mask, cut by the container's CPU quota where there
/// is one. At least 1.
int usable_cores();

/// GPUs that the NVIDIA driver shows this process (CUDA_VISIBLE_DEVICES respected); 0 without a
/// driver. Asks the driver itself, so it costs no LibTorch start-up.
int visible_gpus();

}  // namespace mnist_train::launch
