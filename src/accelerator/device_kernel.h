#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace mnist_train::accelerator {

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

}  // namespace mnist_train::accelerator
