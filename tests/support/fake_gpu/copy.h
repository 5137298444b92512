#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

/// A copy of `rows` rows of `width` bytes, whose beginnings are the pitches apart.
struct CopyRequest {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t width = 0;
  std::size_t rows = 1;
  std::size_t to_pitch = 0;
  std::size_t from_pitch = 0;
  const char* call = "";    // a literal
  bool host_waits = false;  // whatever the memory
};

/// Gives the stream a copy. The host waits for it where the memory of the host is pageable, as it
/// does with CUDA. Fails where the memory of a device is not allocated.
cudaError_t copy(Stream& stream, const CopyRequest& request);

/// Gives the stream a fill with bytes of that value.
cudaError_t fill(Stream& stream, void* address, int value, std::size_t bytes, const char* call);

}  // namespace mnist_train::fake_gpu
