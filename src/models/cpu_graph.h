#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpu_kernels/graph.h"
#include "models/cpu_network.h"
#include "network/network.h"

namespace mnist_train::models {

/// The module whose tensors a node of a graph takes.
struct NodeModule {
  std::size_t node;
  std::shared_ptr<torch::nn::Module> module;
};

/// Layers as a graph of cpu_kernels/.
struct CpuGraph {
  cpu_kernels::Graph graph;
  std::vector<NodeModule> modules;
  std::size_t layers;        // in the graph
  network::SampleShape in;   // of the first layer
  network::SampleShape out;  // of the last one
  std::size_t weighted = 0;  // convolutions and linear layers
};

/// Returns a graph of as many of the first layers as cpu_kernels/ can compute, perhaps none.
/// `dropouts`: dropout layers before them.
CpuGraph translate(std::span<const network::SizedLayer* const> layers, std::int64_t dropouts,
                   const CpuNetwork::ModuleOf& module_of);

}  // namespace mnist_train::models
