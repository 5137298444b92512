#include "cpu_kernels/graph.h"

#include <utility>

namespace mnist_train::cpu_kernels {

GraphNode* Graph::open_node(Value value) {
  if (nodes_.empty() || nodes_.back().out != value || nodes_.back().relu ||
      is_shared_[static_cast<std::size_t>(value)]) {
    return nullptr;
  }
  return &nodes_.back();
}

/// Fuses ReLU with nodes that can compute it, and ReLU6 with batch norm.
Value Graph::add(const ActivationNode& added, Value in) {
  const Function function = added.activation.function;
  GraphNode* const node = open_node(in);
  if (node == nullptr || (function != Function::kRelu && function != Function::kRelu6)) {
    return append(added, in, shape_of(in));
  }
  const bool is_norm = std::holds_alternative<BatchNormNode>(node->kind);
  if (function == Function::kRelu6) {
    if (!is_norm || node->residual != kNoValue) return append(added, in, shape_of(in));
    node->limit = 6;
  } else if (!is_norm && !std::holds_alternative<ConvolutionNode>(node->kind) &&
             !std::holds_alternative<SumNode>(node->kind) &&
             !std::holds_alternative<MaxPoolNode>(node->kind)) {
    // Max pooling takes a ReLU before it, too: see add(MaxPoolNode).
    return append(added, in, shape_of(in));
  }
  node->relu = true;
  return in;
}

Value Graph::add_sum(Value in, Value residual) {
  for (const auto& [computed, added] : {std::pair{in, residual}, std::pair{residual, in}}) {
    GraphNode* const node = open_node(computed);
    if (node == nullptr || !std::holds_alternative<BatchNormNode>(node->kind) ||
        node->residual != kNoValue) {
      continue;
    }
    node->residual = added;
    return computed;
  }
  append(SumNode{}, in, shape_of(in));
  nodes_.back().residual = residual;
  return nodes_.back().out;
}

/// A ReLU and max pooling commute, and after pooling there are fewer elements.
Value Graph::add(const MaxPoolNode& node, Value in) {
  bool relu = false;
  if (!nodes_.empty() && nodes_.back().out == in && !is_shared_[static_cast<std::size_t>(in)] &&
      nodes_.back().relu && std::holds_alternative<ConvolutionNode>(nodes_.back().kind)) {
    nodes_.back().relu = false;
    relu = true;
  }
  append(node, in, node.shape.out);
  nodes_.back().relu = relu;
  return nodes_.back().out;
}

}  // namespace mnist_train::cpu_kernels
