#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

/// Max or average pooling with a fixed window size. Windows of average pooling may extend beyond
/// the image only at the bottom and right (ceil_mode).
struct PoolingShape {
  ValueShape in, out;
  Extent kernel, stride, padding{0, 0};
};

/// Returns whether a shape's plan, which lists every element of every window, is small.
inline bool has_small_plan(const PoolingShape& shape) {
  constexpr std::int64_t kMaxElements = 1 << 20;
  return shape.out.pixels() * shape.kernel.height * shape.kernel.width <= kMaxElements;
}
/// Returns whether the plan is small and a byte can hold a maximum's position in its window.
inline bool can_max_pool(const PoolingShape& shape) {
  return has_small_plan(shape) && shape.kernel.height * shape.kernel.width < 255;
}

/// Index of an activation tensor in a graph: 0 is the input, the others are outputs of nodes.
using Value = std::size_t;
inline constexpr Value kNoValue = ~Value{0};

struct ConvolutionNode {
  ConvolutionShape shape;
};
struct BatchNormNode {
  double epsilon, momentum;
};
struct SumNode {};
struct ActivationNode {
  ActivationSpec activation;
};
/// Drops elements with probability `p` in training. `index` is that among dropout layers.
struct DropoutNode {
  std::int64_t index;
  double p;
};
/// Produces one-pixel images whose channels are in the order of PyTorch's flatten.
struct FlattenNode {};
struct MaxPoolNode {
  PoolingShape shape;
};
struct AveragePoolNode {
  PoolingShape shape;
};

/// A pass over activations: a layer or fused layers. Only batch norms and sums can have a residual.
struct GraphNode {
  std::variant<ConvolutionNode, BatchNormNode, SumNode, ActivationNode, DropoutNode, FlattenNode,
               MaxPoolNode, AveragePoolNode>
      kind;
  Value in;
  Value out;
  Value residual = kNoValue;
  bool relu = false;
  float limit = kNoLimit;  // upper limit of the ReLU after a batch norm
};

/// A network as a list of nodes in forward order. Adjacent layers are fused as the graph is built:
///
///   Graph graph({1, 28, 28});
///   Value x = graph.add(ConvolutionNode{shape}, graph.input());
///   x = graph.add(ActivationNode{}, graph.add(BatchNormNode{1e-5, 0.1}, x));  // one node
///
/// A linear layer is a convolution of one-pixel images; larger images need a FlattenNode before it.
class Graph {
 public:
  explicit Graph(const ValueShape& input) : shapes_{input}, is_shared_{true} {}

  static Value input() { return 0; }
  Value add(const ConvolutionNode& node, Value in) { return append(node, in, node.shape.out); }
  Value add(const BatchNormNode& node, Value in) { return append(node, in, shape_of(in)); }
  Value add(const DropoutNode& node, Value in) {
    return node.p == 0 ? in : append(node, in, shape_of(in));
  }
  Value add(const FlattenNode& node, Value in) {
    const ValueShape& shape = shape_of(in);
    return append(node, in, {shape.elements(), 1, 1});
  }
  /// Applies a preceding convolution's ReLU after pooling (they commute), to fewer elements.
  Value add(const MaxPoolNode& node, Value in) {
    GraphNode* const previous = open_node<ConvolutionNode>(in);
    const bool relu = previous != nullptr && std::exchange(previous->relu, false);
    const Value out = append(node, in, node.shape.out);
    nodes_.back().relu = relu;
    return out;
  }
  Value add(const AveragePoolNode& node, Value in) { return append(node, in, node.shape.out); }
  /// Fuses ReLU with nodes that can compute it, and ReLU6 with batch norms without a residual.
  Value add(const ActivationNode& added, Value in) {
    const bool is_relu6 = added.activation.function == Function::kRelu6;
    GraphNode* node = nullptr;
    if (added.activation.function == Function::kRelu) {
      node = open_node<ConvolutionNode, BatchNormNode, SumNode, MaxPoolNode>(in);
    } else if (is_relu6) {
      node = open_node<BatchNormNode>(in);
    }
    if (node == nullptr || node->relu || (is_relu6 && node->residual != kNoValue)) {
      return append(added, in, shape_of(in));
    }
    if (is_relu6) node->limit = 6;
    node->relu = true;
    return in;
  }
  /// Adds two values. Fuses the sum with the last node if that is a batch norm, without ReLU or
  /// another residual, that computes one of them and does not read the other.
  Value add_sum(Value in, Value residual) {
    for (const auto& [computed, added] : {std::pair{in, residual}, std::pair{residual, in}}) {
      GraphNode* const node = open_node<BatchNormNode>(computed);
      if (node == nullptr || node->relu || node->residual != kNoValue || node->in == added)
        continue;
      node->residual = added;
      return computed;
    }
    return append(SumNode{}, in, shape_of(in), residual);
  }

  /// Declares that multiple nodes read this value, so no further layers are fused into its node.
  void share(Value value) { is_shared_[value] = true; }

  const std::vector<GraphNode>& nodes() const { return nodes_; }
  std::size_t value_count() const { return shapes_.size(); }
  const ValueShape& shape_of(Value value) const { return shapes_[value]; }

 private:
  template <class Kind>
  Value append(const Kind& kind, Value in, const ValueShape& out, Value residual = kNoValue) {
    shapes_.push_back(out);
    is_shared_.push_back(false);
    nodes_.push_back({kind, in, shapes_.size() - 1, residual});
    return nodes_.back().out;
  }
  /// Returns the last node if it is of one of these kinds and computes this value, which is not
  /// shared; otherwise null.
  template <class... Kinds>
  GraphNode* open_node(Value value) {
    if (nodes_.empty() || nodes_.back().out != value || is_shared_[value]) return nullptr;
    GraphNode& node = nodes_.back();
    return (... || std::holds_alternative<Kinds>(node.kind)) ? &node : nullptr;
  }

  std::vector<GraphNode> nodes_;
  std::vector<ValueShape> shapes_;  // per value
  std::vector<bool> is_shared_;
};

}  // namespace mnist_train::cpu_kernels
