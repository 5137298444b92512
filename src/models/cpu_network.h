#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cpu_kernels/graph_executor.h"
#include "models/batch_norm.h"
#include "models/gradient_places.h"
#include "network/network.h"

namespace mnist_train::models {

using ModuleOf =
    std::function<std::shared_ptr<torch::nn::Module>(const network::SizedLayer& sized)>;

/// The parameters of a node and, of a batch norm, its module.
struct NodeTensors {
  std::vector<at::Tensor> parameters() const {
    return bias.defined() ? std::vector{weight, bias} : std::vector{weight};
  }

  std::size_t node;
  at::Tensor weight;
  at::Tensor bias;                  // may be undefined
  std::shared_ptr<BatchNorm> norm;  // null: a convolution or linear layer
};

/// Layers as a graph of cpu_kernels/.
struct CpuGraph {
  cpu_kernels::Graph graph;
  std::vector<NodeTensors> nodes;  // with parameters
  std::size_t layers;              // in the graph
  network::SampleShape in;         // of the first layer
  network::SampleShape out;        // of the last one
};

/// Returns a graph of as many of the first layers as cpu_kernels/ can compute, perhaps none.
/// `dropouts`: dropout layers before them.
CpuGraph translate(std::span<const network::SizedLayer* const> layers, std::int64_t dropouts,
                   const ModuleOf& module_of);

/// Consecutive layers that cpu_kernels/ computes as one operation of autograd.
class CpuNetwork {
 public:
  explicit CpuNetwork(CpuGraph graph) : graph_(std::move(graph)) {}

  /// Returns the number of layers. They are the first ones that `make_cpu_network` was given.
  std::size_t layers() const { return graph_.layers; }
  /// Returns whether this CPU has the instructions, and whether x has the type of the weights, the
  /// planned shape, and enough images. If not, LibTorch has to compute the layers.
  bool can_compute(const at::Tensor& x) const;
  /// Returns the output for x [N,C,H,W] or [N,F]. The backward pass must come before the next
  /// `forward`; it writes gradients to `places`. With `training`, there is dropout, by `seeds` [N]
  /// i64. Collective if a batch norm is synchronized.
  at::Tensor forward(const at::Tensor& x, GradientPlaces& places, bool training,
                     const at::Tensor& seeds);

 private:
  using Passes = cpu_kernels::Passes;
  class Stage;

  /// Executors for one type, planned when they are first used.
  template <class Element>
  struct Executors {
    cpu_kernels::GraphExecutor<Element>& executor_for(const cpu_kernels::Graph& graph,
                                                      std::int64_t images, Passes passes);

    std::unique_ptr<cpu_kernels::GraphExecutor<Element>> inference, training;
    Passes training_passes = Passes::kBackward;
  };

  /// Returns `action(executors)` for the type of a tensor.
  template <class Action>
  auto with_executors(const at::Tensor& like, const Action& action) {
    return like.scalar_type() == at::kFloat ? action(fp32_) : action(bf16_);
  }
  /// `passes`: kForward without a backward pass.
  at::Tensor compute(const at::Tensor& x, bool training, Passes passes);
  template <class Element>
  void bind(cpu_kernels::GraphExecutor<Element>& executor, Passes passes) const;
  /// Continues the backward pass through a stage. Returns the gradients of its input and of its
  /// parameters; undefined if they are not wanted.
  std::vector<at::Tensor> gradients(std::size_t begin, std::size_t end,
                                    const at::Tensor& of_output);
  const cpu_kernels::ValueShape& in_shape() const {
    return graph_.graph.shape_of(cpu_kernels::Graph::input());
  }
  const cpu_kernels::ValueShape& out_shape() const {
    return graph_.graph.shape_of(graph_.graph.nodes().back().out);
  }

  CpuGraph graph_;
  Executors<float> fp32_;
  Executors<cpu_kernels::Bf16Bits> bf16_;
  // Of the last forward pass with a backward pass:
  std::int64_t number_ = 0;
  std::vector<WantedGradients> wanted_;  // of each node with parameters
  std::vector<std::int64_t> sizes_;      // of x
  at::Tensor output_;
  at::Tensor seeds_;
};

/// Returns the longest network of the first layers; null if it would have fewer than two layers
/// with weights, which do not pay for the conversion of input and output. `dropouts`: dropout
/// layers before them.
std::unique_ptr<CpuNetwork> make_cpu_network(std::span<const network::SizedLayer* const> layers,
                                             std::int64_t dropouts, const ModuleOf& module_of);

}  // namespace mnist_train::models
