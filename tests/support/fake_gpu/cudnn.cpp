/// cuDNN: backend descriptors store their attributes, and there is one engine for everything, which
/// runs no-op kernels. The older API, used by LibTorch's batch norm, has empty descriptors (stubs).
#include <cudnn.h>
#include <cudnn_backend.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "support/fake_gpu/device.h"
#include "support/fake_gpu/message.h"

namespace mnist_train::fake_gpu {

namespace {

struct Handle {
  cudaStream_t stream = nullptr;
};

Handle& handle_of(cudnnHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

struct Attribute {
  std::int64_t count = 0;
  std::vector<char> bytes;
};

/// A backend descriptor, to which the program has a void*.
using Descriptor = std::unordered_map<int, Attribute>;

std::size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;  // INT32, FLOAT and enumerations
  }
}

/// Answers queries about engines: there is only one, and it needs no workspace.
bool answer_for_engine(cudnnBackendAttributeName_t name, std::int64_t& count, void* values) {
  count = 1;
  std::int64_t value = 0;
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
    case CUDNN_ATTR_ENGINECFG_ENGINE:
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG:
      return true;  // the program created the results itself
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
      value = 1;
      break;
    default:
      return false;
  }
  if (values != nullptr) std::memcpy(values, &value, sizeof value);
  return true;
}

}  // namespace

int launch_with_handle(void* handle, const char* function) {
  const cudaStream_t stream = static_cast<Handle*>(handle)->stream;
  const bool launched = launch_library_kernel(stream, function) == cudaSuccess;
  return launched ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

extern "C" {

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }

std::size_t cudnnGetCudartVersion() { return CUDART_VERSION; }

const char* cudnnGetErrorString(cudnnStatus_t) { return "mock cuDNN status"; }

void cudnnGetLastErrorString(char* text, std::size_t size) {
  std::snprintf(text, size, "%s", cudnnGetErrorString(CUDNN_STATUS_SUCCESS));
}

/// Fails during a capture, because the real function allocates memory.
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (check_unsafe_call("cudnnCreate") != cudaSuccess) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle_of(handle).stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = handle_of(handle).stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t,
                                           cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Descriptor;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* values) {
  Attribute& attribute = (*static_cast<Descriptor*>(descriptor))[name];
  const std::size_t size = values == nullptr ? 0 : bytes_of(type) * static_cast<std::size_t>(count);
  const auto* begin = static_cast<const char*>(values);
  attribute = {count, std::vector<char>(begin, begin + size)};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t requested,
                                       std::int64_t* count, void* values) {
  std::int64_t unused = 0;
  std::int64_t& found_count = count == nullptr ? unused : *count;
  if (answer_for_engine(name, found_count, values)) return CUDNN_STATUS_SUCCESS;
  const auto& attributes = *static_cast<const Descriptor*>(descriptor);
  const auto found = attributes.find(name);
  found_count = found == attributes.end() ? 0 : found->second.count;
  if (found == attributes.end() || values == nullptr) return CUDNN_STATUS_SUCCESS;
  const std::vector<char>& bytes = found->second.bytes;
  const std::size_t wanted = bytes_of(type) * static_cast<std::size_t>(requested);
  std::copy_n(bytes.begin(), std::min(bytes.size(), wanted), static_cast<char*>(values));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t,
                                  cudnnBackendDescriptor_t) {
  return static_cast<cudnnStatus_t>(launch_with_handle(handle, "cudnnBackendExecute"));
}

constexpr std::size_t kWorkspace_bytes = 4096;

static cudnnStatus_t tell_workspace(std::size_t* bytes) {
  *bytes = kWorkspace_bytes;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnActivationDescriptor_t, std::size_t* bytes) {
  return tell_workspace(bytes);
}

cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t,
    std::size_t* bytes) {
  return tell_workspace(bytes);
}

cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnActivationDescriptor_t,
    const cudnnTensorDescriptor_t, std::size_t* bytes) {
  return tell_workspace(bytes);
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
