#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "launch/status_board.h"

namespace mnist_train::accelerator {

/// Work of a device that is captured once and then repeated by a single call: a CUDA graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Captures the launches of `work`, without computing them. All tensors that it reads and writes
  /// must keep their addresses, and it must not wait for the device. Throws Error(kRunFailed).
  virtual void capture(const std::function<void()>& work) = 0;
  /// Launches the captured work, and does not wait for it.
  virtual void replay() = 0;
};

/// Makes a graph for the device of the calling thread.
using GraphFactory = std::function<std::unique_ptr<DeviceGraph>()>;

/// The number of blocks of a kernel, and of threads per block.
struct Grid {
  unsigned blocks;
  unsigned threads;
};

/// One argument of a kernel: a pointer to its value in the host's memory, and its size.
struct KernelArgument {
  const void* value;
  std::size_t bytes;
};

/// A function that runs on a GPU.
class DeviceKernel {
 public:
  virtual ~DeviceKernel() = default;

  /// Launches the kernel in the calling thread's stream, and does not wait for it. The arguments,
  /// in the order and with the sizes of the kernel's parameters, are copied at once. A grid without
  /// blocks launches nothing. Throws Error(kRunFailed).
  virtual void launch(const Grid& grid, std::span<const KernelArgument> arguments) const = 0;
};

/// Kernels that were compiled together.
class KernelModule {
 public:
  virtual ~KernelModule() = default;

  /// Returns the kernel of that name. Throws Error(kRunFailed) if there is none.
  virtual std::unique_ptr<DeviceKernel> find(const std::string& name) const = 0;
};

/// Sets, for the whole process, the status that shows waits for the GPU in `wait_until`,
/// `synchronize` and `to_host`; null for none. They wait without end, even if the GPU does not
/// answer or a captured collective waits for a rank that is gone: whoever watches the status ends
/// the process.
void show_waits_on(launch::RankStatus* status);

/// Returns when `has_reached` tells that the device has come to a point of its work.
void wait_until(const std::function<bool()>& has_reached);

/// Returns when the device has finished all work of this thread; on a CPU at once.
void synchronize(at::Device device);

/// Keeps the host from running more than a few steps or batches ahead of its GPU. A launch blocks
/// unseen once the device's queue is full, as when the device hangs, so the host must reach a wait
/// that the status shows (see `show_waits_on`) before that.
class RunAheadLimit {
 public:
  /// The host waits when it is between `steps` and twice as many steps ahead.
  RunAheadLimit(at::Device device, int steps);

  /// Counts a launched step; after every `steps` of them waits until the GPU has reached the host's
  /// position `steps` before. Does nothing on a CPU.
  void step_launched();

 private:
  at::Device device_;
  int steps_;
  int launched_ = 0;                // since `last_` was recorded
  std::optional<c10::Event> last_;  // none on a CPU, like the next one
  std::optional<c10::Event> next_;
};

/// Returns a tensor in the host's memory: itself on a CPU, else a copy. Waits as `synchronize`
/// does; results on a GPU must be read with this, not with LibTorch's functions.
at::Tensor to_host(const at::Tensor& tensor);

/// Returns a tensor in the memory of the device: itself if it is there already, else a copy. The
/// host does not wait for a copy to a GPU, which comes from page-locked memory.
at::Tensor to_device(const at::Tensor& tensor, at::Device device);

/// Returns the larger of this process's peak resident memory and, on a GPU, the peak of LibTorch's
/// allocator, in bytes.
std::int64_t peak_memory_bytes(at::Device device);

/// Returns the free memory of a GPU, in bytes.
std::int64_t free_memory_bytes(at::Device device);

/// Returns whether this CPU or GPU computes bf16 natively: AVX512-BF16, or Ampere and later.
bool computes_bfloat16(at::Device device);

/// Returns the name of the GPU, such as "NVIDIA H100 80GB HBM3"; empty for a CPU.
std::string device_name(at::Device device);

/// Returns the factory of graphs for the device; null for a CPU.
GraphFactory graph_factory(at::Device device);

/// The functions of the CUDA module. LibTorch's CUDA half takes half a second to load, so only runs
/// that use a GPU load it and this module; tensors on a GPU then work as everywhere else.
struct CudaModule {
  int (*device_count)();
  /// Makes the calling thread compute on that GPU, in its own stream: CUDA does not capture graphs
  /// in the default stream.
  void (*set_device)(int index);
  std::int64_t (*peak_memory_bytes)(int index);  // of LibTorch's allocator
  std::int64_t (*free_memory_bytes)(int index);
  const char* (*device_name)(int index);
  /// Returns "0000:01:00.0", by which NCCL tells GPUs apart. The same for all slices (MIG) of a
  /// GPU.
  std::string (*pci_address)(int index);
  bool (*computes_bfloat16)(int index);  // natively
  int (*runtime_version)();              // 13000 is 13.0
  std::string (*nccl_version)();         // "2.28.9"
  std::unique_ptr<DeviceGraph> (*make_graph)();
  /// Compiles CUDA C++ by NVRTC for the GPU of the calling thread, or finds it compiled in the
  /// user's cache. Throws Error(kRunFailed).
  std::unique_ptr<KernelModule> (*compile_kernels)(const std::string& source);
};

/// Returns the module's functions; loads it on the first call. Throws Error(kConfig) if this build
/// has no CUDA module or LibTorch's CUDA libraries cannot be loaded.
const CudaModule& cuda_module();

/// Returns a function of the CUDA module by its C name, for functions that another layer declares.
/// Throws as `cuda_module` does.
void* cuda_module_function(const char* name);

}  // namespace mnist_train::accelerator
