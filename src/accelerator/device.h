#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "launch/status_board.h"

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

/// Makes a graph for the device of the calling thread.
using GraphFactory = std::function<std::unique_ptr<DeviceGraph>()>;

/// A mark in the work that a thread gives its device.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;

  /// Sets the mark behind all that the thread has given the device so far.
  virtual void record() = 0;
  /// Returns whether the device has come to the mark, or there is none yet. Does not wait.
  virtual bool is_done() const = 0;
};

/// Returns an event for the device of the calling thread; null on a CPU, which computes at once.
std::unique_ptr<DeviceEvent> make_event(at::Device device);

/// Sets for the whole process whose status, which may be null, shows that its rank waits for its
/// GPU in `wait`, `synchronize` and `to_host`. They wait without end, even if the GPU does not
/// answer or a captured collective waits there for a rank that is gone: whoever watches the status
/// ends the process.
void show_waits_on(launch::RankStatus* status);

/// Returns when the device has come to the event.
void wait(const DeviceEvent& event);

/// Returns when the device has finished what this thread gave it to do; on a CPU at once.
void synchronize(at::Device device);

/// Returns a tensor in the host's memory: itself on a CPU, else a copy. Waits as
/// `synchronize` does, so results are read from a GPU with this, not with LibTorch's functions.
at::Tensor to_host(const at::Tensor& tensor);

/// Returns a tensor in the memory of the device: itself where it is there already, else a copy. A
/// GPU's is made behind all that the thread has given it so far, from page-locked memory, so the
/// host does not wait for it.
at::Tensor to_device(const at::Tensor& tensor, at::Device device);

/// Returns the larger of this process's peak resident memory and, where it computes on a GPU, the
/// peak of LibTorch's allocator there, in bytes.
std::int64_t peak_memory_bytes(at::Device device);

/// Returns how many bytes of a GPU's memory nobody uses.
std::int64_t free_memory_bytes(at::Device device);

/// Returns whether this processor or GPU computes bf16 natively: AVX512-BF16, or Ampere and later.
bool computes_bfloat16(at::Device device);

/// Returns the name of the GPU, such as "NVIDIA H100 80GB HBM3"; empty for a CPU.
std::string device_name(at::Device device);

/// Returns what makes graphs for the device; null for a CPU, which has none.
GraphFactory graph_factory(at::Device device);

}  // namespace mnist_train::accelerator
