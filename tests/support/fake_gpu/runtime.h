#pragma once

#include <cuda_runtime_api.h>

namespace mnist_train::fake_gpu {

/// Stores an error for the calling thread's cudaGetLastError, and returns it.
cudaError_t remember(cudaError_t error);

}  // namespace mnist_train::fake_gpu
