#include "support/fake_gpu/graph.h"

#include <utility>

#include "support/fake_gpu/capture.h"
#include "support/fake_gpu/report.h"
#include "support/fake_gpu/stream.h"

namespace mnist_train::fake_gpu {

void Graph::add(Node node) {
  ++counts_.at(static_cast<std::size_t>(node.kind));
  names_.push_back(node.name);
  if (node.operation) operations_.push_back(std::move(node.operation));
}

void Graph::run() const {
  for (const Operation& operation : operations_) operation();
}

cudaError_t launch_graph(const std::shared_ptr<Graph>& graph, cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  if (!is_capturing(stream)) count(Counter::kReplays);
  return submit(stream, {NodeKind::kOther, "cudaGraphLaunch", [graph] { graph->run(); }});
}

}  // namespace mnist_train::fake_gpu
