// Tests how a graph fuses layers; models/cpu_network_test.cpp compares results with LibTorch.
#include "cpu_kernels/graph.h"

#include "support/catch.h"

namespace mnist_train::cpu_kernels {
namespace {

constexpr ValueShape kShape{8, 6, 6};

Value add_convolution(Graph& graph, Value in) {
  return graph.add(ConvolutionNode{{kShape, kShape, {1, 1}}}, in);
}

Value add_norm(Graph& graph, Value in) {
  return graph.add(BatchNormNode{1e-5, 0.1}, add_convolution(graph, in));
}

TEST_CASE("the residual sum and the ReLUs of a residual block are fused") {
  Graph graph(kShape);
  const Value x = graph.add(ActivationNode{}, add_norm(graph, Graph::input()));
  graph.share(x);
  const Value front = graph.add(ActivationNode{}, add_norm(graph, x));
  const Value end = add_norm(graph, front);
  const Value shortcut = add_norm(graph, x);
  graph.add(ActivationNode{}, graph.add_sum(end, shortcut));
  CHECK(graph.nodes().size() == 8);
}

TEST_CASE("a ReLU is fused with any preceding layer, and a ReLU6 with a preceding batch norm") {
  for (int function = 0; function <= static_cast<int>(Function::kGelu); ++function) {
    INFO("function " << function);
    const ActivationNode activation{{static_cast<Function>(function)}};
    Graph graph(kShape);
    const Value x = graph.add(activation, add_norm(graph, Graph::input()));
    graph.add(activation, add_convolution(graph, x));
    const bool is_relu = activation.activation.function == Function::kRelu;
    const bool is_relu6 = activation.activation.function == Function::kRelu6;
    CHECK(graph.nodes().size() == (is_relu ? 3U : is_relu6 ? 4U : 5U));
  }
}

TEST_CASE("dropout with probability 0 has no node") {
  Graph graph(kShape);
  const Value x = add_convolution(graph, Graph::input());
  CHECK(graph.add(DropoutNode{0, 0}, x) == x);
}

TEST_CASE("LibTorch computes pooling if the plan of its windows would be large") {
  CHECK(has_small_plan(
      {.in = {1, 112, 112}, .out = {1, 56, 56}, .kernel = {3, 3}, .stride = {2, 2}}));
  CHECK_FALSE(has_small_plan(
      {.in = {1, 224, 224}, .out = {1, 160, 160}, .kernel = {65, 65}, .stride = {1, 1}}));
}

}  // namespace
}  // namespace mnist_train::cpu_kernels
