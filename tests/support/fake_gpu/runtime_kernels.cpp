/// The CUDA runtime: kernels of host code that nvcc compiled, which calls the functions with
/// underscores, entry points of the driver, captures and graphs.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/graph.h"
#include "support/fake_gpu/kernels.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/runtime.h"
#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

namespace {

constexpr int kMaxThreadsPerMultiprocessor = 2048;

/// What nvcc's host code passes from the `<<<…>>>` of a launch to the launch itself.
struct CallConfiguration {
  LaunchShape shape;
  cudaStream_t stream;
};

thread_local std::vector<CallConfiguration> call_configurations;

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* binary) { return new void*(binary); }

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void** handle) { delete handle; }

char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  register_kernel(host_function, name);
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}

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
  attributes->maxDynamicSharedSizeBytes = 227 * 1024;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_size,
                                                          std::size_t) {
  *blocks = std::max(1, kMaxThreadsPerMultiprocessor / std::max(block_size, 1));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* host_function, int block_size, std::size_t shared_bytes, unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, host_function, block_size,
                                                       shared_bytes);
}

/// Looks a function of the driver up; libcuda.so.1 says so where there is none.
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
  trace("cudaStreamBeginCapture, mode ", static_cast<int>(mode));
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

/// Tells of no dependencies: graphs have no edges here.
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

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }

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
