#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mnist_train::accelerator {

/// Work of a device that is captured once and then repeated by a single call: a CUDA graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Captures what `work` launches, without computing it. All tensors that it reads and writes must
  /// stay where they are, and it must not wait for the device. Throws Error(kRunFailed).
  virtual void capture(const std::function<void()>& work) = 0;
  /// Launches what was captured, and does not wait for it.
  virtual void replay() = 0;
};

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
