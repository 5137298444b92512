#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "accelerator/device_graph.h"

namespace mnist_train::accelerator {

/// Returns when the device has finished what this thread gave it to do; on a CPU at once.
void synchronize(at::Device device);

/// Returns the larger of this process's peak resident memory and, where it computes on a GPU, the
/// peak of LibTorch's allocator there, in bytes.
std::int64_t peak_memory_bytes(at::Device device);

/// Returns whether this processor or GPU computes bf16 natively: AVX512-BF16, or Ampere and later.
bool computes_bfloat16(at::Device device);

/// Returns the name of the GPU, such as "NVIDIA H100 80GB HBM3"; empty for a CPU.
std::string device_name(at::Device device);

/// Returns a graph for the device of the calling thread; null on a CPU, which has none.
std::unique_ptr<DeviceGraph> make_graph(at::Device device);

}  // namespace mnist_train::accelerator
