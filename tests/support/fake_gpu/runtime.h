#pragma once

#include <cuda_runtime_api.h>

namespace mnist_train::fake_gpu {

/// Remembers an error of a call for cudaGetLastError of the calling thread, and returns it.
cudaError_t remember(cudaError_t error);

}  // namespace mnist_train::fake_gpu
