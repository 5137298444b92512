/// NCCL: communicators and collectives. A collective is a kernel that exchanges bytes with the
/// other ranks while it runs.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <span>

#include "support/fake_gpu/message.h"
#include "support/fake_gpu/nccl_communicator.h"
#include "support/fake_gpu/nccl_reduction.h"

namespace mnist_train::fake_gpu {

namespace {

using Handle = std::shared_ptr<Communicator>;

thread_local const char* last_error = "";

ncclResult_t make_communicator(ncclComm_t* handle, const ncclUniqueId& id, int rank, int size) {
  if (check_unsafe_call("ncclCommInitRank") != cudaSuccess) return ncclUnhandledCudaError;
  ncclResult_t result = ncclSuccess;
  Handle communicator = Communicator::join(id, rank, size, result);
  if (result == ncclInvalidUsage) last_error = "Duplicate GPU detected";
  if (communicator == nullptr) return result;
  *handle = reinterpret_cast<ncclComm_t>(new Handle(std::move(communicator)));
  return ncclSuccess;
}

}  // namespace

const Handle& communicator_of(ncclComm_t handle) { return *reinterpret_cast<Handle*>(handle); }

ncclResult_t launch_nccl(cudaStream_t stream, const char* name, Operation operation) {
  const cudaError_t error = launch_library_kernel(stream, name, std::move(operation));
  return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t check_buffers(const char* call, const void* from, const void* to) {
  if (device_of(from) >= 0 && device_of(to) >= 0) return ncclSuccess;
  say_misuse(call, "a buffer is not memory of a device");
  return ncclInvalidArgument;
}

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) { return last_error; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return Communicator::make_unique_id(*id); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  return make_communicator(handle, id, rank, size);
}

ncclResult_t ncclCommInitRank(ncclComm_t* handle, int size, ncclUniqueId id, int rank) {
  return make_communicator(handle, id, rank, size);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* handle, int size, int rank, int,
                                      ncclUniqueId* ids, ncclConfig_t*) {
  return make_communicator(handle, ids[0], rank, size);
}

ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  delete reinterpret_cast<Handle*>(handle);
  return ncclSuccess;
}

/// Lets what waits for other ranks on the streams of this process return.
ncclResult_t ncclCommAbort(ncclComm_t handle) {
  say("NCCL: abort of rank ", communicator_of(handle)->rank());
  communicator_of(handle)->abort();
  return ncclCommDestroy(handle);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t handle, int* size) {
  *size = communicator_of(handle)->size();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  *rank = communicator_of(handle)->rank();
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t, void*, std::size_t, void** registration) {
  *registration = nullptr;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

}  // extern "C"

namespace {

const std::byte* readable(const void* address) {
  return static_cast<const std::byte*>(host_address(address));
}

std::byte* writable(void* address) { return static_cast<std::byte*>(host_address(address)); }

/// A reduction of `count` elements, of which this rank keeps those between `begin` and `end`.
struct Reduction {
  const void* from = nullptr;
  void* to = nullptr;  // of the first element that is kept
  std::size_t count = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t operation = ncclSum;
};

void run_reduction(Communicator& communicator, const Reduction& reduction) {
  const std::size_t element = bytes_of(reduction.type);
  communicator.exchange(
      readable(reduction.from), reduction.count * element,
      [&](std::size_t offset, std::size_t bytes) {
        const std::size_t first = std::max(reduction.begin, offset / element);
        const std::size_t last = std::min(reduction.end, (offset + bytes) / element);
        if (first >= last) return;
        std::array<const std::byte*, kMaxRanks> inputs{};
        const auto ranks = static_cast<std::size_t>(communicator.size());
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          inputs.at(rank) = communicator.shown(static_cast<int>(rank)) + first * element - offset;
        }
        reduce(std::span<const std::byte* const>(inputs.data(), ranks),
               writable(reduction.to) + (first - reduction.begin) * element, last - first,
               reduction.type, reduction.operation);
      });
}

ncclResult_t launch_reduction(const char* name, const Reduction& reduction, ncclComm_t handle,
                              cudaStream_t stream) {
  if (const auto error = check_buffers(name, reduction.from, reduction.to)) return error;
  if (!can_reduce(reduction.type, reduction.operation)) {
    say_misuse(name, "the stand-in cannot reduce this type, or not in this way");
    return ncclInvalidArgument;
  }
  return launch_nccl(stream, name, [communicator = communicator_of(handle), reduction] {
    run_reduction(*communicator, reduction);
  });
}

}  // namespace

extern "C" {

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t handle, cudaStream_t stream) {
  return launch_reduction("ncclAllReduce", {from, to, count, 0, count, type, operation}, handle,
                          stream);
}

ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, int root, ncclComm_t handle, cudaStream_t stream) {
  const bool is_root = communicator_of(handle)->rank() == root;
  return launch_reduction("ncclReduce",
                          {from, is_root ? to : const_cast<void*>(from), count, 0,
                           is_root ? count : 0, type, operation},
                          handle, stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t handle, cudaStream_t stream) {
  const auto rank = static_cast<std::size_t>(communicator_of(handle)->rank());
  const auto ranks = static_cast<std::size_t>(communicator_of(handle)->size());
  return launch_reduction(
      "ncclReduceScatter",
      {from, to, ranks * count, rank * count, (rank + 1) * count, type, operation}, handle, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t handle, cudaStream_t stream) {
  constexpr const char* kCall = "ncclBroadcast";
  const bool is_root = communicator_of(handle)->rank() == root;
  if (const auto error = check_buffers(kCall, is_root ? from : to, to)) return error;
  const std::size_t total_bytes = count * bytes_of(type);
  return launch_nccl(stream, kCall, [=, communicator = communicator_of(handle)] {
    communicator->exchange(is_root ? readable(from) : nullptr, total_bytes,
                           [&](std::size_t offset, std::size_t bytes) {
                             std::memcpy(writable(to) + offset, communicator->shown(root), bytes);
                           });
  });
}

ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t handle, cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, handle, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t handle, cudaStream_t stream) {
  constexpr const char* kCall = "ncclAllGather";
  if (const auto error = check_buffers(kCall, from, to)) return error;
  const std::size_t bytes_per_rank = count * bytes_of(type);
  return launch_nccl(stream, kCall, [=, communicator = communicator_of(handle)] {
    communicator->exchange(
        readable(from), bytes_per_rank, [&](std::size_t offset, std::size_t bytes) {
          for (int rank = 0; rank < communicator->size(); ++rank) {
            std::byte* place = writable(to) + static_cast<std::size_t>(rank) * bytes_per_rank;
            std::memcpy(place + offset, communicator->shown(rank), bytes);
          }
        });
  });
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
