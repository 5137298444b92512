#include "cpu_kernels/graph.h"

#include <utility>

namespace mnist_train::cpu_kernels {

/// Fuses ReLU with nodes that can compute it, and ReLU6 with batch norm.
Value Graph::add(const ActivationNode& added, Value in) {
  const Function function = added.activation.function;
  GraphNode* const node = open_node(in);
  if (node == nullptr || node->relu ||
      (function != Function::kRelu && function != Function::kRelu6)) {
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
    if (node == nullptr || node->relu || !std::holds_alternative<BatchNormNode>(node->kind) ||
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
  GraphNode* const before = open_node(in);
  const bool relu = before != nullptr && std::holds_alternative<ConvolutionNode>(before->kind) &&
                    std::exchange(before->relu, false);
  append(node, in, node.shape.out);
  nodes_.back().relu = relu;
  return nodes_.back().out;
}

}  // namespace mnist_train::cpu_kernels
