#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

/// What libfake_gpu.so offers to the libraries that stand in for CUDA's. Those of the runtime
/// (runtime*.cpp) use the other headers, too.
namespace mnist_train::fake_gpu {

/// Work of a stream, which runs on the stream's thread. It may run more than once, in a graph.
using Operation = std::function<void()>;

inline constexpr const char* kDeviceName = "Fake H100";
inline constexpr int kComputeMajor = 9;
inline constexpr int kComputeMinor = 0;
inline constexpr int kMaxThreadsPerBlock = 1024;

/// Returns an attribute of every device, by the number that it has in the runtime and in the
/// driver; 0 for features that this device does not have.
int device_attribute(int attribute);

/// Returns the number of blocks of `block_size` threads that a multiprocessor can run at once.
int resident_blocks(int block_size);

/// Returns the number of devices that this process sees.
int device_count();

/// Returns the calling thread's device, which is 0 at first.
int current_device();

/// Makes `device` the calling thread's, which must be less than `device_count()`.
void set_current_device(int device);

/// Notes that the runtime has made the device's context the calling thread's, as it does when it
/// needs one. The driver does not, and refuses a thread without.
void bind_context();
bool has_context();

/// Returns the device whose memory the address lies in; -1 for memory of the host.
int device_of(const void* address);

/// Returns where the mock itself can read and write that memory: the program's own address for
/// memory of the host.
void* host_address(const void* address);

/// Returns the memory of every device, in bytes.
std::size_t device_memory_bytes();

/// Returns the error of a call that may not be made while a stream captures, and cudaSuccess if
/// no capture forbids it.
cudaError_t check_unsafe_call(const char* call);

/// Launches a kernel of a library, which `name` stands for in reports: it runs on the stream, or
/// becomes a node of the graph that the stream captures. An empty operation is a kernel that does
/// nothing. `name` must be a literal.
cudaError_t launch_library_kernel(cudaStream_t stream, const char* name, Operation operation = {});

}  // namespace mnist_train::fake_gpu
