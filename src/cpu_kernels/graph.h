#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "cpu_kernels/kernels.h"
#include "cpu_kernels/pooling.h"

namespace mnist_train::cpu_kernels {

/// An activation tensor of a graph: 0 is the input, the others are the nodes' results.
using Value = std::size_t;
inline constexpr Value kNoValue = ~Value{0};

struct ConvolutionNode {
  ConvolutionShape shape;
};
struct BatchNormNode {
  double epsilon, momentum;
};
struct SumNode {};
/// The product of `in` and a gate, stored as the residual: pixel by pixel, or all pixels by a
/// single one.
struct GateNode {};
struct ActivationNode {
  ActivationSpec activation;
};
/// Drops elements with probability `p` in training. `number` is the layer's index among the
/// dropouts.
struct DropoutNode {
  std::int64_t number;
  double p;
};
/// Produces images of one pixel, with the elements in the order of PyTorch's flatten.
struct FlattenNode {};
struct MaxPoolNode {
  PoolingShape shape;
};
struct AveragePoolNode {
  PoolingShape shape;
};

/// One pass over activations: a layer and the layers fused with it. Batch norms, sums and gates can
/// have a residual.
struct GraphNode {
  std::variant<ConvolutionNode, BatchNormNode, SumNode, GateNode, ActivationNode, DropoutNode,
               FlattenNode, MaxPoolNode, AveragePoolNode>
      kind;
  Value in;
  Value out;
  Value residual = kNoValue;
  bool relu = false;
  float limit = kNoLimit;  // upper limit of the ReLU after a batch norm
};

/// A network as nodes in the order of the forward pass. Adjacent layers are fused while it is
/// built:
///
///   Graph graph({1, 28, 28});
///   Value x = graph.add(ConvolutionNode{shape}, graph.input());
///   x = graph.add(ActivationNode{}, graph.add(BatchNormNode{1e-5, 0.1}, x));  // one node
///
/// A flatten before a linear layer needs no node: the layer is then a convolution with a kernel of
/// the image's size. With a node, the weights are read in place, which is faster if there are many.
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
    return append(node, in, {shape.channels * shape.pixels(), 1, 1});
  }
  /// ReLU and max pooling commute; after pooling there are fewer elements, so the ReLU is moved
  /// there.
  Value add(const MaxPoolNode& node, Value in) {
    GraphNode* const before = open_node<ConvolutionNode>(in);
    const bool relu = before != nullptr && std::exchange(before->relu, false);
    const Value out = append(node, in, node.shape.out);
    nodes_.back().relu = relu;
    return out;
  }
  Value add(const AveragePoolNode& node, Value in) { return append(node, in, node.shape.out); }
  /// Fuses ReLU with nodes that can compute it, and ReLU6 with batch norm.
  Value add(const ActivationNode& added, Value in) {
    const bool limits = added.activation.function == Function::kRelu6;
    GraphNode* node = nullptr;
    if (added.activation.function == Function::kRelu) {
      node = open_node<ConvolutionNode, BatchNormNode, SumNode, MaxPoolNode>(in);
    } else if (limits) {
      node = open_node<BatchNormNode>(in);
    }
    if (node == nullptr || node->relu || (limits && node->residual != kNoValue)) {
      return append(added, in, shape_of(in));
    }
    if (limits) node->limit = 6;
    node->relu = true;
    return in;
  }
  /// Adds two values. If one is computed by the last node, a batch norm, the sum is fused with it.
  Value add_sum(Value in, Value residual) {
    for (const auto& [computed, added] : {std::pair{in, residual}, std::pair{residual, in}}) {
      GraphNode* const node = open_node<BatchNormNode>(computed);
      if (node == nullptr || node->relu || node->residual != kNoValue) continue;
      node->residual = added;
      return computed;
    }
    return append(SumNode{}, in, shape_of(in), residual);
  }

  /// Multiplies `in` by a gate with the same channels and the same number of pixels, or one pixel.
  Value add_product(Value in, Value gate) { return append(GateNode{}, in, shape_of(in), gate); }

  /// Declares that several nodes use this value: no more layers are fused with the node that
  /// computes it.
  void share(Value value) { is_shared_[value] = true; }

  const std::vector<GraphNode>& nodes() const { return nodes_; }
  std::size_t values() const { return shapes_.size(); }
  const ValueShape& shape_of(Value value) const { return shapes_[value]; }

 private:
  template <class Kind>
  Value append(const Kind& kind, Value in, const ValueShape& out, Value residual = kNoValue) {
    shapes_.push_back(out);
    is_shared_.push_back(false);
    nodes_.push_back({kind, in, shapes_.size() - 1, residual});
    return nodes_.back().out;
  }
  /// Returns the last node if it is of one of these kinds, computes the value and may be fused with
  /// others, else null.
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
