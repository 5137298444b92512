#pragma once

#include <cuda_runtime_api.h>

/// What the sources of libcudart.so.13 share.
namespace mnist_train::fake_gpu {

/// Remembers an error of a call for cudaGetLastError of the calling thread, and returns it.
cudaError_t remember(cudaError_t error);

/// Returns whether the program sees that device.
bool is_device(int device);

}  // namespace mnist_train::fake_gpu
