/// The CUDA runtime's captures and graphs.
#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/graph.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/runtime.h"
#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

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
