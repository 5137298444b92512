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

/// Device work that is captured once and then replayed with a single call: a CUDA graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Captures the launches of `work` without executing them. Tensors that `work` reads or writes
  /// must keep their addresses, and `work` must not wait for the device. Throws Error(kRunFailed).
  virtual void capture(const std::function<void()>& work) = 0;
  /// Launches the captured work without waiting for it.
  virtual void replay() = 0;
};

/// Creates a graph for the device of the calling thread.
using GraphFactory = std::function<std::unique_ptr<DeviceGraph>()>;

/// Number of blocks in a launch, and of threads per block.
struct Grid {
  unsigned blocks;
  unsigned threads;
};

/// A kernel argument: a pointer to its value in host memory, and its size.
struct KernelArgument {
  const void* value;
  std::size_t bytes;
};

/// GPU kernels that were compiled together.
class KernelModule {
 public:
  virtual ~KernelModule() = default;

  /// Launches the kernel with this name on the calling thread's stream without waiting for it.
  /// Copies the arguments before it returns; their order and sizes must match the kernel's
  /// parameters. A grid with no blocks launches nothing. Throws Error(kRunFailed).
  virtual void launch(const std::string& name, const Grid& grid,
                      std::span<const KernelArgument> arguments) = 0;
};

/// Sets the status in which `wait_until`, `synchronize` and `to_host`, on any thread, report that
/// they are waiting for the GPU; null hides the waits. These functions have no timeout: if the GPU
/// hangs or a captured collective waits for a lost rank, the watcher of the status (the launcher or
/// a thread of this rank) ends the process.
void report_waits_to(launch::RankStatus* status);

/// Polls `has_reached` until it reports that the device has reached a certain point in its work.
void wait_until(const std::function<bool()>& has_reached);

/// Returns once the GPU has finished all work on this thread's stream; on a CPU, immediately.
void synchronize(at::Device device);

/// Keeps the host from running more than a few steps or batches ahead of its GPU. If the GPU hangs,
/// its queue fills up and the next launch blocks, which the status does not show. The host must
/// therefore reach a wait that is shown (see `report_waits_to`) before the queue is full.
class RunAheadLimit {
 public:
  /// The host gets at most 2 * `steps` steps ahead and waits only if it is more than `steps` ahead.
  RunAheadLimit(at::Device device, int steps);

  /// Counts a launched step. After every `steps` steps, waits until the GPU has reached the point
  /// at which the host was `steps` steps ago. No-op on a CPU.
  void step_launched();

 private:
  at::Device device_;
  int steps_;
  int launched_ = 0;                // since `last_` was recorded
  std::optional<c10::Event> last_;  // none on a CPU; likewise `next_`
  std::optional<c10::Event> next_;
};

/// Returns a tensor in host memory: the tensor itself on a CPU, otherwise a copy. Waits as
/// `synchronize` does. Read GPU results with this function, not with LibTorch's.
at::Tensor to_host(const at::Tensor& tensor);

/// Returns a tensor in the device's memory: the tensor itself if it is already there, otherwise a
/// copy. Copies to a GPU come from page-locked memory, and the host does not wait for them.
at::Tensor to_device(const at::Tensor& tensor, at::Device device);

/// Returns this process's peak resident memory in bytes or, on a GPU, the peak of LibTorch's
/// allocator if that is larger.
std::int64_t peak_memory_bytes(at::Device device);

/// Returns whether the device supports bf16 natively: CPUs with AVX512-BF16, GPUs from Ampere on.
bool computes_bfloat16(at::Device device);

/// Functions of the CUDA module. LibTorch's CUDA libraries take half a second to load, so only
/// processes that use a GPU load them and this module; tensors on a GPU then work as usual.
struct CudaModule {
  int (*device_count)();
  /// Makes the calling thread use this GPU and, for capture into graphs, a non-default stream.
  void (*set_device)(int index);
  std::int64_t (*peak_memory_bytes)(int index);  // of LibTorch's allocator
  std::int64_t (*free_memory_bytes)(int index);
  const char* (*device_name)(int index);  // "NVIDIA H100 80GB HBM3"
  /// Returns the PCI address ("0000:01:00.0") by which NCCL identifies a GPU. MIG slices share it.
  std::string (*pci_address)(int index);
  bool (*computes_bfloat16)(int index);  // natively
  int (*runtime_version)();              // 13000 is 13.0
  std::string (*nccl_version)();         // "2.28.9"
  std::unique_ptr<DeviceGraph> (*make_graph)();
  /// Compiles CUDA C++ with NVRTC for the calling thread's GPU, or loads the result from the user's
  /// cache. Throws Error(kRunFailed).
  std::unique_ptr<KernelModule> (*compile_kernels)(const std::string& source);
};

/// Returns the module's functions; the first call loads it. Throws Error(kConfig) if this build has
/// no CUDA module or LibTorch's CUDA libraries cannot be loaded.
const CudaModule& cuda_module();

/// Returns a function of the CUDA module by its C name, for functions that another layer declares.
/// Throws like `cuda_module`.
void* cuda_module_function(const char* name);

}  // namespace mnist_train::accelerator
