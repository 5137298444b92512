#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <memory>

#include "support/fake_gpu/device.h"
#include "support/fake_gpu/nccl_communicator.h"

/// What the sources of libnccl.so.2 share.
namespace mnist_train::fake_gpu {

/// Returns the communicator behind a handle of the program. Work of a stream or of a graph keeps it
/// alive after the program has destroyed it.
const std::shared_ptr<Communicator>& communicator_of(ncclComm_t handle);

/// Launches an operation of NCCL's as a kernel of the stream.
ncclResult_t launch_nccl(cudaStream_t stream, const char* name, Operation operation);

/// Returns ncclInvalidArgument, and says so, unless both addresses are of a device's memory, as an
/// all-reduce of the host's memory would be refused or crash.
ncclResult_t check_buffers(const char* call, const void* from, const void* to);

}  // namespace mnist_train::fake_gpu
