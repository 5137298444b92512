#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "support/fake_gpu/stream.h"

/// The rules of stream capture, as in section "Stream Capture" of the CUDA C++ Programming Guide. A
/// call that breaks one fails with CUDA's error, prints to stderr, and invalidates the capture.
namespace mnist_train::fake_gpu {

/// Kinds of graph nodes. The last one is for host functions and nested graphs.
enum class NodeKind { kKernel, kCopy, kFill, kOther };

inline constexpr std::size_t kNodeKinds = 4;

/// Work that a stream runs or captures. An empty operation does nothing and takes no time.
struct Node {
  NodeKind kind = NodeKind::kOther;
  const char* name = "";  // lives as long as the process
  Operation operation;
};

/// A captured graph: its nodes in the order of the program's calls.
class Graph {
 public:
  void add(Node node) {
    ++counts_.at(static_cast<std::size_t>(node.kind));
    ++nodes_;
    if (node.operation) operations_.push_back(std::move(node.operation));
  }
  /// Runs all nodes sequentially, even those that a GPU would run concurrently.
  void run() const {
    for (const Operation& operation : operations_) operation();
  }

  std::size_t nodes() const { return nodes_; }
  const std::array<std::size_t, kNodeKinds>& counts() const { return counts_; }  // by kind

 private:
  std::array<std::size_t, kNodeKinds> counts_{};
  std::size_t nodes_ = 0;
  std::vector<Operation> operations_;  // without empty ones
};

/// The target of a cudaGraph_t or cudaGraphExec_t.
struct GraphHandle {
  std::shared_ptr<Graph> graph;
};

/// Launches a graph: it runs on the stream, or becomes a node of the graph being captured.
cudaError_t launch_graph(const std::shared_ptr<Graph>& graph, cudaStream_t stream);

struct Capture;

/// For each stream, the number of its nodes that precede a point of a capture.
using NodesBefore = std::map<const Stream*, std::uint64_t>;

/// A point of a capture, marked by an event recorded in a capturing stream.
struct CapturePoint {
  std::shared_ptr<Capture> capture;
  NodesBefore nodes_before;
};

/// The result of cudaStreamGetCaptureInfo.
struct CaptureInfo {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  GraphHandle* graph = nullptr;  // lives as long as the capture
};

/// Starts capturing the stream's work.
cudaError_t begin_capture(Stream& stream, cudaStreamCaptureMode mode);
/// Ends a capture, and sets `graph` if the captured graph is valid: no rule was broken, and the
/// work of all other streams that joined the capture is joined to this stream.
cudaError_t end_capture(Stream& stream, std::shared_ptr<Graph>& graph);

bool is_capturing(const Stream& stream);
/// Sets `info`. Fails if `stream` is legacy and a blocking stream of its device is capturing.
cudaError_t get_capture_info(const Stream& stream, CaptureInfo& info);

/// Exchanges the calling thread's mode, which determines whose captures forbid unsafe calls.
void exchange_capture_mode(cudaStreamCaptureMode& mode);

/// Submits work to the stream: it runs, or becomes a node of the graph being captured.
cudaError_t submit(Stream& stream, Node node);

/// Returns the error of a call that is forbidden for a capturing stream, such as waiting for it.
cudaError_t check_not_capturing(const Stream& stream, const char* call);
/// Returns the error of a call that is forbidden while any stream of the device is capturing.
cudaError_t check_device_not_capturing(int device, const char* call);
/// Returns the error of a call that uses the legacy stream while a blocking stream of its device is
/// capturing, since the legacy stream would have to wait for that stream.
cudaError_t check_legacy_stream(const Stream& stream, const char* call);

/// Sets `point` to the current point of the stream's capture; `capture` is null if there is none.
cudaError_t get_capture_point(const Stream& stream, CapturePoint& point);
/// Makes the stream wait for a point of a capture, and thus join the capture.
cudaError_t join_capture(Stream& stream, const CapturePoint& point);
/// Returns the error of querying an event that marks a point of a capture.
cudaError_t refuse_captured_event(const CapturePoint& point, const char* call);
/// Returns the error of a capturing stream that waits for an event from outside its capture.
cudaError_t check_no_outside_event(const Stream& stream);

}  // namespace mnist_train::fake_gpu
