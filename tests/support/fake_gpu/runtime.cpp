/// The CUDA runtime: devices, errors, kernels launched by host code that nvcc compiled (it calls
/// the functions with underscores), driver entry points, captures and graphs.
#include "support/fake_gpu/runtime.h"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/device.h"
#include "support/fake_gpu/kernels.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/report.h"
#include "support/fake_gpu/settings.h"
#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

namespace {

bool is_device(int device) { return device >= 0 && device < device_count(); }

int pci_bus_of(int device) { return visible_devices().at(static_cast<std::size_t>(device)) + 1; }

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return remember(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  set_current_device(device);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "%s", kDeviceName);
  std::memset(properties->uuid.bytes, 0x40 + pci_bus_of(device), sizeof properties->uuid.bytes);
  properties->pciBusID = pci_bus_of(device);
  properties->totalGlobalMem = device_memory_bytes();
  properties->major = kComputeMajor;
  properties->minor = kComputeMinor;
  properties->multiProcessorCount = device_attribute(cudaDevAttrMultiProcessorCount);
  properties->textureAlignment = 512;
  properties->l2CacheSize = device_attribute(cudaDevAttrL2CacheSize);
  properties->cooperativeLaunch = 1;
  const auto bytes_of = [](int attribute) {
    return static_cast<std::size_t>(device_attribute(attribute));
  };
  properties->sharedMemPerBlock = bytes_of(cudaDevAttrMaxSharedMemoryPerBlock);
  properties->sharedMemPerBlockOptin = bytes_of(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  properties->sharedMemPerMultiprocessor = bytes_of(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  properties->regsPerBlock = 65536;
  properties->regsPerMultiprocessor = 65536;
  properties->warpSize = device_attribute(cudaDevAttrWarpSize);
  properties->maxThreadsPerBlock = kMaxThreadsPerBlock;
  properties->maxThreadsDim[0] = kMaxThreadsPerBlock;
  properties->maxThreadsDim[1] = kMaxThreadsPerBlock;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = device_attribute(cudaDevAttrMaxGridDimX);
  properties->maxGridSize[1] = device_attribute(cudaDevAttrMaxGridDimY);
  properties->maxGridSize[2] = device_attribute(cudaDevAttrMaxGridDimZ);
  properties->maxThreadsPerMultiProcessor =
      device_attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  properties->maxBlocksPerMultiProcessor = device_attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  *value = device_attribute(attribute);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!is_device(device)) return remember(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0",
                static_cast<unsigned>(pci_bus_of(device)));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can_access, int, int) {
  *can_access = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  constexpr const char* kCall = "cudaDeviceSynchronize";
  if (const cudaError_t error = check_unsafe_call(kCall)) return remember(error);
  if (const cudaError_t error = check_device_not_capturing(current_device(), kCall)) {
    return remember(error);
  }
  count(Counter::kSynchronizations);
  wait_for_device(current_device());
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

}  // extern "C"

namespace {

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "error %d of the runtime", static_cast<int>(error));
  return text.data();
}

const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

}  // extern "C"

namespace {

/// Arguments of `<<<…>>>` that host code compiled by nvcc pushes before the launch and pops for it.
struct CallConfiguration {
  LaunchShape shape;
  cudaStream_t stream;
};

thread_local std::vector<CallConfiguration> call_configurations;

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* binary) { return new void*(binary); }

void __cudaUnregisterFatBinary(void** handle) { delete handle; }

char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  register_kernel(host_function, name);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes,
                                     CUstream_st* stream) {
  call_configurations.push_back({{grid, block, shared_bytes}, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes,
                                       void* stream) {
  if (call_configurations.empty()) return remember(cudaErrorMissingConfiguration);
  const CallConfiguration configuration = call_configurations.back();
  call_configurations.pop_back();
  *grid = configuration.shape.grid;
  *block = configuration.shape.block;
  *shared_bytes = configuration.shape.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  *kernel = reinterpret_cast<cudaKernel_t>(find_kernel(host_function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, const void** arguments,
                               std::size_t shared_bytes, cudaStream_t stream) {
  return remember(launch_kernel(reinterpret_cast<Kernel*>(kernel), {grid, block, shared_bytes},
                                const_cast<void**>(arguments), stream));
}

cudaError_t cudaLaunchKernel(const void* host_function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
  bind_context();
  return remember(
      launch_kernel(find_kernel(host_function), {grid, block, shared_bytes}, arguments, stream));
}

cudaError_t cudaLaunchCooperativeKernel(const void* host_function, dim3 grid, dim3 block,
                                        void** arguments, std::size_t shared_bytes,
                                        cudaStream_t stream) {
  return cudaLaunchKernel(host_function, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host_function,
                                void** arguments) {
  return cudaLaunchKernel(host_function, config->gridDim, config->blockDim, arguments,
                          config->dynamicSmemBytes, config->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = kMaxThreadsPerBlock;
  attributes->numRegs = 32;
  attributes->binaryVersion = 10 * kComputeMajor + kComputeMinor;
  attributes->ptxVersion = attributes->binaryVersion;
  attributes->maxDynamicSharedSizeBytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_size,
                                                          std::size_t) {
  *blocks = resident_blocks(block_size);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* host_function, int block_size, std::size_t shared_bytes, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, host_function, block_size,
                                                       shared_bytes);
}

/// Looks up a driver function; the mock libcuda.so.1 prints a message if it does not exist.
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result) {
  using Lookup = int(const char*, void**, int, unsigned long long, void*);
  static void* const kDriver = ::dlopen("libcuda.so.1", RTLD_NOW);
  auto* lookup = kDriver == nullptr
                     ? nullptr
                     : reinterpret_cast<Lookup*>(::dlsym(kDriver, "cuGetProcAddress_v2"));
  *function = nullptr;
  if (lookup != nullptr) lookup(name, function, static_cast<int>(version), flags, nullptr);
  if (result != nullptr) {
    *result =
        *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}

}  // extern "C"

namespace {

GraphHandle& handle_of_graph(cudaGraph_t graph) { return *reinterpret_cast<GraphHandle*>(graph); }

}  // namespace

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  exchange_capture_mode(*mode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return remember(begin_capture(stream_of(stream), mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  std::shared_ptr<Graph> captured;
  if (const cudaError_t error = end_capture(stream_of(stream), captured)) return remember(error);
  *graph = reinterpret_cast<cudaGraph_t>(new GraphHandle{std::move(captured)});
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  CaptureInfo info;
  if (const cudaError_t error = get_capture_info(stream_of(stream), info)) return remember(error);
  *status = info.status;
  return cudaSuccess;
}

/// Reports no dependencies, because graphs of the mock have no edges.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, std::size_t* count) {
  CaptureInfo info;
  if (const cudaError_t error = get_capture_info(stream_of(stream), info)) return remember(error);
  *status = info.status;
  if (id != nullptr) *id = info.id;
  if (graph != nullptr) *graph = reinterpret_cast<cudaGraph_t>(info.graph);
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* count) {
  *count = handle_of_graph(graph).graph->nodes();
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         std::size_t* count) {
  *count = 0;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete &handle_of_graph(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long) {
  if (const cudaError_t error = check_unsafe_call("cudaGraphInstantiate")) return remember(error);
  *executable = reinterpret_cast<cudaGraphExec_t>(new GraphHandle(handle_of_graph(graph)));
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<GraphHandle*>(executable);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const GraphHandle& handle = *reinterpret_cast<GraphHandle*>(executable);
  return remember(launch_graph(handle.graph, stream));
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
