#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace mnist_train::fake_gpu {

/// Translates a device address to the address at which the mock can access it.
using Translate = void* (*)(void* address);

/// The function named kBindKernel in a library compiled by the mock NVRTC (see nvrtc_prologue.h).
/// Sets `work` to a function that runs the kernel with copied arguments. Returns whether it exists.
using BindKernel = bool(const char* name, void* const* arguments, Translate translate,
                        unsigned blocks, unsigned threads, std::function<void()>* work);
inline constexpr const char* kBindKernel = "mnist_train_bind_kernel";

/// First bytes of the mock's cubin; the library's size (eight bytes) and the library follow.
inline constexpr char kImageMagic[] = "fake_gpu kernels";

/// A kernel of the program: a no-op unless nvrtc.cpp compiled or `emulate_aten_kernel` knows it.
struct Kernel {
  const char* name = "";       // mangled; lives as long as the process
  BindKernel* bind = nullptr;  // null unless nvrtc.cpp compiled it
};

/// Grid, block and shared memory of a launch.
struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
};

/// Registers the kernel that host code by nvcc launches by the address of `host_function`.
void register_kernel(const void* host_function, const char* name);

/// Returns the kernel of a host function; null if none was registered.
Kernel* find_kernel(const void* host_function);

/// Launches a kernel: it runs on the stream, or becomes a node of the graph being captured.
/// `arguments` may be null. Fails for a null kernel, and for a shape that an H100 would reject.
cudaError_t launch_kernel(const Kernel* kernel, const LaunchShape& shape, void** arguments,
                          cudaStream_t stream);

}  // namespace mnist_train::fake_gpu
