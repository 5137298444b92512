#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace mnist_train::fake_gpu {

/// Translates a device address to the address at which the mock can access it.
using Translate = void* (*)(void* address);

/// The function kBindKernel of a library compiled by the mock's NVRTC (see nvrtc_prologue.h).
/// Sets `work` to a function that computes the kernel with a copy of the arguments. Returns whether
/// the kernel exists.
using BindKernel = bool(const char* name, void* const* arguments, Translate translate,
                        unsigned blocks, unsigned threads, std::function<void()>* work);
inline constexpr const char* kBindKernel = "mnist_train_bind_kernel";

/// First bytes of the mock's cubin; the library's size (eight bytes) and the library follow.
inline constexpr char kImageMagic[] = "fake_gpu kernels";

/// A kernel of the program, which is a no-op unless it was compiled by nvrtc.cpp or is one of
/// ATen's that `emulate_aten_kernel` knows.
struct Kernel {
  const char* name = "";       // mangled; lives as long as the process
  BindKernel* bind = nullptr;  // in nvrtc.cpp's library
};

/// Grid, block and shared memory of a launch.
struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
};

/// Registers the kernel that nvcc's host code launches by the address of `host_function`.
void register_kernel(const void* host_function, const char* name);

/// Returns the kernel of a host function; null if none was registered.
Kernel* find_kernel(const void* host_function);

/// Launches a kernel: it runs on the stream, or becomes a node of the graph that the stream
/// captures. `arguments` may be null. Fails for a null kernel, and for a shape that an H100
/// refuses.
cudaError_t launch_kernel(const Kernel* kernel, const LaunchShape& shape, void** arguments,
                          cudaStream_t stream);

}  // namespace mnist_train::fake_gpu
