#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "support/fake_gpu/device.h"

namespace mnist_train::fake_gpu {

/// What a node of a graph does. The last kind is for functions of the host and for graphs within
/// graphs.
enum class NodeKind { kKernel, kCopy, kFill, kOther };

inline constexpr std::size_t kNodeKinds = 4;

/// Work that a stream runs or captures. An empty operation does nothing and takes no time.
struct Node {
  NodeKind kind = NodeKind::kOther;
  const char* name = "";  // lives as long as the process
  Operation operation;
};

/// What a stream captured: its nodes, in the order in which the program gave them.
class Graph {
 public:
  void add(Node node);
  /// Runs every node, one after the other. Nodes that a GPU would run at the same time do not.
  void run() const;

  std::size_t nodes() const { return names_.size(); }
  std::size_t count(NodeKind kind) const { return counts_.at(static_cast<std::size_t>(kind)); }
  const std::vector<const char*>& names() const { return names_; }

 private:
  std::array<std::size_t, kNodeKinds> counts_{};
  std::vector<const char*> names_;
  std::vector<Operation> operations_;  // those that are not empty
};

/// What a cudaGraph_t or a cudaGraphExec_t of the program points at.
struct GraphHandle {
  std::shared_ptr<Graph> graph;
};

/// Launches a graph: it runs on the stream, or becomes a node of what the stream captures.
cudaError_t launch_graph(const std::shared_ptr<Graph>& graph, cudaStream_t stream);

}  // namespace mnist_train::fake_gpu
