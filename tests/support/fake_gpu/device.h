#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

/// libfake_gpu.so's interface for mocks of CUDA's libraries; runtime*.cpp also use other headers.
namespace mnist_train::fake_gpu {

/// Work that runs on a stream's thread, possibly several times if it is part of a graph.
using Operation = std::function<void()>;

inline constexpr const char* kDeviceName = "Fake H100";
inline constexpr int kComputeMajor = 9;
inline constexpr int kComputeMinor = 0;
inline constexpr int kMaxThreadsPerBlock = 1024;

/// Returns the value of a device attribute, which is the same for all devices, by its number in the
/// runtime and the driver API; 0 for unsupported features.
int device_attribute(int attribute);

/// Returns the number of blocks of `block_size` threads that a multiprocessor can run concurrently.
int resident_blocks(int block_size);

/// Returns the number of devices that this process sees.
int device_count();

/// Returns the calling thread's device, initially 0.
int current_device();

/// Sets the calling thread's device, which must be less than `device_count()`.
void set_current_device(int device);

/// Records that the runtime has bound the device's context to the calling thread, which it does
/// when needed. The driver does not, and refuses threads without a context.
void bind_context();
bool has_context();

/// Returns the device whose memory contains the address; -1 for host memory.
int device_of(const void* address);

/// Returns the address at which the mock itself can access this memory: the same for host memory.
void* host_address(const void* address);

/// Returns the memory size of each device, in bytes.
std::size_t device_memory_bytes();

/// Returns the error of a call that is unsafe in a capture; cudaSuccess if no capture forbids it.
cudaError_t check_unsafe_call(const char* call);

/// Launches a library's kernel: it runs on the stream, or becomes a node of the graph being
/// captured. An empty operation is a no-op kernel. Reports contain `name`, which must be a literal.
cudaError_t launch_library_kernel(cudaStream_t stream, const char* name, Operation operation = {});

}  // namespace mnist_train::fake_gpu
