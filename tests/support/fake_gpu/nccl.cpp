/// NCCL: making, asking and ending communicators.
#include <cstdio>

#include "support/fake_gpu/message.h"
#include "support/fake_gpu/nccl_communicator.h"

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

}  // namespace mnist_train::fake_gpu
