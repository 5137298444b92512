#include "cpu_kernels/graph_executor.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cpu_kernels/activations.h"
#include "cpu_kernels/blocked.h"
#include "cpu_kernels/kernels.h"
#include "support/catch.h"

namespace mnist_train::cpu_kernels {
namespace {

/// Parameters of a node and their gradients, in fp64: weights and biases.
struct Parameters {
  std::vector<double> weight, bias, weight_gradient, bias_gradient;
};

/// Computes a graph in fp64, forward in training and backward.
class Reference {
 public:
  Reference(const Graph& graph, std::int64_t images, std::vector<Parameters>& parameters)
      : graph_(graph), images_(images), parameters_(parameters) {
    for (Value v = 0; v < graph.values(); ++v) {
      const ValueShape& shape = graph.shape_of(v);
      values_.emplace_back(static_cast<std::size_t>(images * shape.channels * shape.pixels()));
    }
    gradients_ = values_;
  }

  const std::vector<double>& forward(const std::vector<double>& x) {
    values_[0] = x;
    for (std::size_t i = 0; i < graph_.nodes().size(); ++i) {
      const GraphNode& node = graph_.nodes()[i];
      std::vector<double>& y = at(values_, node.out);
      std::visit([&](const auto& kind) { compute(kind, node, parameters_[i], y); }, node.kind);
      const bool adds = node.residual != kNoValue && !std::holds_alternative<GateNode>(node.kind);
      for (std::size_t j = 0; j < y.size() && adds; ++j) {
        y[j] += at(values_, node.residual)[j];
      }
      if (!node.relu) continue;
      for (double& value : y) value = std::clamp(value, 0.0, double(node.limit));
    }
    return values_.back();
  }
  const std::vector<double>& input_gradient() const { return gradients_.front(); }
  void backward(const std::vector<double>& dy) {
    gradients_.back() = dy;
    for (std::size_t i = graph_.nodes().size(); i-- > 0;) {
      const GraphNode& node = graph_.nodes()[i];
      std::vector<double> g = at(gradients_, node.out);
      for (std::size_t j = 0; j < g.size(); ++j) {
        const double y = at(values_, node.out)[j];
        if (node.relu && (y <= 0 || y >= double(node.limit))) g[j] = 0;
        if (node.residual != kNoValue && !std::holds_alternative<GateNode>(node.kind)) {
          at(gradients_, node.residual)[j] += g[j];
        }
      }
      std::visit([&](const auto& kind) { differentiate(kind, node, parameters_[i], g); },
                 node.kind);
    }
  }

 private:
  static std::vector<double>& at(std::vector<std::vector<double>>& all, Value v) {
    return all[static_cast<std::size_t>(v)];
  }
  std::size_t channel(Value v, std::size_t index) const {
    const ValueShape& shape = graph_.shape_of(v);
    return index / static_cast<std::size_t>(shape.pixels()) %
           static_cast<std::size_t>(shape.channels);
  }

  void compute(const ConvolutionNode& node, const GraphNode& of, Parameters& p,
               std::vector<double>& y) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = node.has_bias ? p.bias[channel(of.out, i)] : 0;
    }
    for_each_product(node.shape, images_, [&](auto out, auto in, auto weight) {
      y[out] += at(values_, of.in)[in] * p.weight[weight];
    });
  }
  void differentiate(const ConvolutionNode& node, const GraphNode& of, Parameters& p,
                     const std::vector<double>& g) {
    for_each_product(node.shape, images_, [&](auto out, auto in, auto weight) {
      at(gradients_, of.in)[in] += g[out] * p.weight[weight];
      p.weight_gradient[weight] += g[out] * at(values_, of.in)[in];
    });
    for (std::size_t i = 0; i < g.size(); ++i) p.bias_gradient[channel(of.out, i)] += g[i];
  }

  struct Statistics {
    std::vector<double> mean, inverse_std;
    double count;
  };
  Statistics statistics(Value v, double epsilon) {
    const std::vector<double>& x = at(values_, v);
    const auto channels = static_cast<std::size_t>(graph_.shape_of(v).channels);
    Statistics s{std::vector<double>(channels), std::vector<double>(channels),
                 static_cast<double>(x.size()) / static_cast<double>(channels)};
    for (std::size_t i = 0; i < x.size(); ++i) s.mean[channel(v, i)] += x[i] / s.count;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double centred = x[i] - s.mean[channel(v, i)];
      s.inverse_std[channel(v, i)] += centred * centred / s.count;
    }
    for (double& value : s.inverse_std) value = 1 / std::sqrt(value + epsilon);
    return s;
  }
  void compute(const BatchNormNode& node, const GraphNode& of, Parameters& p,
               std::vector<double>& y) {
    const Statistics s = statistics(of.in, node.epsilon);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const std::size_t c = channel(of.in, i);
      y[i] = (at(values_, of.in)[i] - s.mean[c]) * s.inverse_std[c] * p.weight[c] + p.bias[c];
    }
  }
  void differentiate(const BatchNormNode& node, const GraphNode& of, Parameters& p,
                     const std::vector<double>& g) {
    const Statistics s = statistics(of.in, node.epsilon);
    const auto normalized = [&](std::size_t i) {
      const std::size_t c = channel(of.in, i);
      return (at(values_, of.in)[i] - s.mean[c]) * s.inverse_std[c];
    };
    for (std::size_t i = 0; i < g.size(); ++i) {
      p.bias_gradient[channel(of.in, i)] += g[i];
      p.weight_gradient[channel(of.in, i)] += g[i] * normalized(i);
    }
    for (std::size_t i = 0; i < g.size(); ++i) {
      const std::size_t c = channel(of.in, i);
      at(gradients_, of.in)[i] +=
          p.weight[c] * s.inverse_std[c] *
          (g[i] - p.bias_gradient[c] / s.count - normalized(i) * p.weight_gradient[c] / s.count);
    }
  }

  /// Returns the index of an element's gate.
  std::size_t gate_of(const GraphNode& of, std::size_t i) const {
    const auto pixels = static_cast<std::size_t>(graph_.shape_of(of.in).pixels());
    return graph_.shape_of(of.residual).pixels() == 1 ? i / pixels : i;
  }
  /// Plain images are in that order already.
  void compute(const FlattenNode&, const GraphNode& of, Parameters&, std::vector<double>& y) {
    y = at(values_, of.in);
  }
  void differentiate(const FlattenNode& node, const GraphNode& of, Parameters&,
                     const std::vector<double>& g) {
    add_gradient(node, of, g);
  }
  void compute(const GateNode&, const GraphNode& of, Parameters&, std::vector<double>& y) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = at(values_, of.in)[i] * at(values_, of.residual)[gate_of(of, i)];
    }
  }
  void differentiate(const GateNode&, const GraphNode& of, Parameters&,
                     const std::vector<double>& g) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      at(gradients_, of.in)[i] += g[i] * at(values_, of.residual)[gate_of(of, i)];
      at(gradients_, of.residual)[gate_of(of, i)] += g[i] * at(values_, of.in)[i];
    }
  }

  // See dropout_test.cpp.
  void compute(const DropoutNode&, const GraphNode&, Parameters&, std::vector<double>&) { FAIL(); }
  void differentiate(const DropoutNode&, const GraphNode&, Parameters&,
                     const std::vector<double>&) {
    FAIL();
  }

  void compute(const SumNode&, const GraphNode& of, Parameters&, std::vector<double>& y) {
    y = at(values_, of.in);
  }
  void compute(const ActivationNode& node, const GraphNode& of, Parameters&,
               std::vector<double>& y) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = activated(node.activation, at(values_, of.in)[i]);
    }
  }
  template <class Kind>
  void add_gradient(const Kind&, const GraphNode& of, const std::vector<double>& g) {
    for (std::size_t i = 0; i < g.size(); ++i) at(gradients_, of.in)[i] += g[i];
  }
  void differentiate(const SumNode& node, const GraphNode& of, Parameters&,
                     const std::vector<double>& g) {
    add_gradient(node, of, g);
  }
  void differentiate(const ActivationNode& node, const GraphNode& of, Parameters&,
                     const std::vector<double>& g) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      at(gradients_, of.in)[i] += g[i] * derivative(node.activation, at(values_, of.in)[i]);
    }
  }

  /// 2x2 windows, whose maxima are found once more for the gradient.
  void compute(const MaxPoolNode& node, const GraphNode& of, Parameters&, std::vector<double>& y) {
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = at(values_, of.in)[maximum(node, of, i)];
  }
  void differentiate(const MaxPoolNode& node, const GraphNode& of, Parameters&,
                     const std::vector<double>& g) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      at(gradients_, of.in)[maximum(node, of, i)] += g[i];
    }
  }
  std::size_t maximum(const MaxPoolNode& node, const GraphNode& of, std::size_t out) {
    const auto width = static_cast<std::size_t>(node.shape.in.width);
    const auto out_width = static_cast<std::size_t>(node.shape.out.width);
    const auto out_pixels = static_cast<std::size_t>(node.shape.out.pixels());
    const std::size_t first = out / out_pixels * static_cast<std::size_t>(node.shape.in.pixels()) +
                              out % out_pixels / out_width * 2 * width + out % out_width * 2;
    std::size_t best = first;
    for (const std::size_t i : {first + 1, first + width, first + width + 1}) {
      if (at(values_, of.in)[i] > at(values_, of.in)[best]) best = i;
    }
    return best;
  }

  /// Of whole images.
  void compute(const AveragePoolNode& node, const GraphNode& of, Parameters&,
               std::vector<double>& y) {
    const std::vector<double>& x = at(values_, of.in);
    std::fill(y.begin(), y.end(), 0.0);
    const auto pixels = static_cast<std::size_t>(node.shape.in.pixels());
    for (std::size_t i = 0; i < x.size(); ++i) y[i / pixels] += x[i] / static_cast<double>(pixels);
  }
  void differentiate(const AveragePoolNode& node, const GraphNode& of, Parameters&,
                     const std::vector<double>& g) {
    const auto pixels = static_cast<std::size_t>(node.shape.in.pixels());
    for (std::size_t i = 0; i < at(gradients_, of.in).size(); ++i) {
      at(gradients_, of.in)[i] += g[i / pixels] / static_cast<double>(pixels);
    }
  }

  const Graph& graph_;
  std::int64_t images_;
  std::vector<Parameters>& parameters_;
  std::vector<std::vector<double>> values_, gradients_;
};

ConvolutionNode convolution(const ValueShape& in, std::int64_t out, std::int64_t kernel,
                            std::int64_t stride, std::int64_t padding, bool bias = false) {
  const auto size = [&](std::int64_t of) { return (of + 2 * padding - kernel) / stride + 1; };
  return {{in,
           {out, size(in.height), size(in.width)},
           {kernel, kernel},
           {stride, stride},
           {padding, padding},
           {1, 1},
           1},
          bias};
}

Value add_convolution_norm(Graph& graph, Value in, std::int64_t out, std::int64_t kernel,
                           std::int64_t stride) {
  const Value x = graph.add(convolution(graph.shape_of(in), out, kernel, stride, kernel / 2), in);
  return graph.add(BatchNormNode{1e-5, 0.1}, x);
}

/// Two convolutions and a shortcut, as in ResNet-18.
Value add_basic_block(Graph& graph, Value in, std::int64_t out, std::int64_t stride) {
  graph.share(in);
  const Value front = graph.add_relu(add_convolution_norm(graph, in, out, 3, stride));
  const Value end = add_convolution_norm(graph, front, out, 3, 1);
  const bool same = stride == 1 && graph.shape_of(in).channels == out;
  const Value shortcut = same ? in : add_convolution_norm(graph, in, out, 1, stride);
  return graph.add_relu(graph.add_sum(end, shortcut));
}

Value add_head(Graph& graph, Value in) {
  const ValueShape& shape = graph.shape_of(in);
  const Value x = graph.add(AveragePoolNode{{shape, {shape.channels, 1, 1}, {0, 0}, {1, 1}}}, in);
  return graph.add(convolution(graph.shape_of(x), 10, 1, 1, 0, /*bias=*/true), x);
}

/// Like configs/own_network.json, for smaller images.
Graph residual_network() {
  Graph graph({1, 14, 14});
  Value x = graph.add_relu(add_convolution_norm(graph, Graph::input(), 16, 3, 2));
  x = add_basic_block(graph, x, 16, 1);
  x = add_basic_block(graph, x, 32, 2);
  add_head(graph, x);
  return graph;
}

/// With biases, pooling and a linear layer of images, and without batch norm.
Graph pooled_network(bool flattens) {
  Graph graph({3, 12, 12});
  Value x = graph.add_relu(graph.add(convolution({3, 12, 12}, 10, 3, 1, 1, true), Graph::input()));
  x = graph.add(MaxPoolNode{{{10, 12, 12}, {10, 6, 6}, {2, 2}, {2, 2}}}, x);
  graph.share(x);
  const Value y = graph.add(convolution({10, 6, 6}, 10, 3, 1, 1, true), x);
  x = graph.add_relu(graph.add_sum(graph.add_relu(y), x));
  if (flattens) {
    x = graph.add(FlattenNode{}, x);
    x = graph.add_relu(graph.add(convolution({360, 1, 1}, 20, 1, 1, 0, true), x));
  } else {
    x = graph.add_relu(graph.add(convolution({10, 6, 6}, 20, 6, 1, 0, true), x));
  }
  graph.add(convolution({20, 1, 1}, 7, 1, 1, 0, true), x);
  return graph;
}

/// A network of our kernels and its tensors, with the same parameters as a reference.
template <class Element>
class Rig {
 public:
  /// Nodes that are `frozen` get no gradients.
  Rig(const Graph& graph, std::int64_t images, Passes passes = Passes::kBackwardToInput,
      std::set<std::size_t> frozen = {})
      : graph_(graph),
        passes_(passes),
        network_(graph, images, passes),
        frozen_(std::move(frozen)) {
    const std::size_t nodes = graph.nodes().size();
    parameters.resize(nodes);
    tensors_.resize(nodes);
    Draws<Element> draws(11);
    for (std::size_t i = 0; i < nodes; ++i) set(i, draws);
  }

  std::vector<Element> forward(const std::vector<Element>& plain, std::int64_t images) {
    const ValueShape& shape = graph_.shape_of(0);
    const std::int64_t out = graph_.shape_of(graph_.nodes().back().out).channels;
    network_.forward(plain.data(),
                     {shape.channels * shape.pixels(), shape.pixels(), shape.width, 1},
                     BatchSize{images}, true);
    std::vector<Element> output(static_cast<std::size_t>(images * out));
    network_.read_output(output.data(), {out, 1, 1, 1});
    return output;
  }

  void check(std::int64_t images, double error) {
    Draws<Element> draws(12);
    const ValueShape& shape = graph_.shape_of(0);
    const ValueShape& out = graph_.shape_of(graph_.nodes().back().out);
    const std::vector<Element> plain = draws.numbers(images * shape.channels * shape.pixels());
    const std::vector<double> x = values_of(plain);
    const std::vector<Element> dy = draws.numbers(images * out.channels);
    const PlainStrides strides{shape.channels * shape.pixels(), shape.pixels(), shape.width, 1};
    const PlainStrides of_output{out.channels, 1, 1, 1};
    const std::vector<Element> output = forward(plain, images);
    network_.begin_backward(dy.data(), of_output);
    network_.backward_to(0);
    std::vector<Element> dx(plain.size());
    const bool has_dx = passes_ == Passes::kBackwardToInput;
    if (has_dx) network_.read_input_gradient(dx.data(), strides);
    Reference reference(graph_, images, parameters);
    INFO(images << " images");
    CHECK(relative_error(values_of(output), reference.forward(x)) <= error);
    for (Parameters& p : parameters) {
      p.weight_gradient.assign(p.weight.size(), 0);
      p.bias_gradient.assign(p.bias.size(), 0);
    }
    reference.backward(values_of(dy));
    if (has_dx) CHECK(relative_error(values_of(dx), reference.input_gradient()) <= error);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (frozen_.contains(i)) continue;
      INFO("node " << i);
      if (std::holds_alternative<ConvolutionNode>(graph_.nodes()[i].kind)) {
        CHECK(relative_error(values_of(tensors_[i].weight_gradient),
                             parameters[i].weight_gradient) <= error);
        if (std::get<ConvolutionNode>(graph_.nodes()[i].kind).has_bias) {
          CHECK(relative_error(values_of(tensors_[i].bias_gradient), parameters[i].bias_gradient) <=
                error);
        }
      } else if (std::holds_alternative<BatchNormNode>(graph_.nodes()[i].kind)) {
        CHECK(relative_error(values_of(tensors_[i].norm_weight_gradient),
                             parameters[i].weight_gradient) <= error);
        CHECK(relative_error(values_of(tensors_[i].norm_bias_gradient),
                             parameters[i].bias_gradient) <= error);
      }
    }
  }

  std::vector<Parameters> parameters;

 private:
  struct Tensors {
    std::vector<Element> weight, bias, weight_gradient, bias_gradient;
    std::vector<float> norm_weight, norm_bias, mean, variance, norm_weight_gradient,
        norm_bias_gradient;
  };

  void set(std::size_t i, Draws<Element>& draws) {
    const GraphNode& node = graph_.nodes()[i];
    Tensors& t = tensors_[i];
    if (const auto* layer = std::get_if<ConvolutionNode>(&node.kind)) {
      const ConvolutionShape& s = layer->shape;
      const std::int64_t fan_in = s.in.channels * s.kernel.height * s.kernel.width;
      t.weight = draws.numbers(s.out.channels * fan_in);
      for (Element& w : t.weight) {
        round_to(value_of(w) * 2 / std::sqrt(static_cast<float>(fan_in)), w);
      }
      t.bias = draws.numbers(s.out.channels);
      t.weight_gradient.resize(t.weight.size());
      t.bias_gradient.resize(t.bias.size());
      parameters[i].weight = values_of(t.weight);
      parameters[i].bias = values_of(t.bias);
      network_.set(i, ConvolutionTensors<Element>{
                          t.weight.data(), layer->has_bias ? t.bias.data() : nullptr, contiguous(s),
                          unless_frozen(i, t.weight_gradient), unless_frozen(i, t.bias_gradient)});
    } else if (std::holds_alternative<BatchNormNode>(node.kind)) {
      const auto channels = static_cast<std::size_t>(graph_.shape_of(node.in).channels);
      for (std::size_t c = 0; c < channels; ++c) {
        t.norm_weight.push_back(0.5F + static_cast<float>(c % 4) / 4);
        t.norm_bias.push_back(static_cast<float>(c % 3) / 4);
      }
      for (auto* zeros : {&t.mean, &t.variance, &t.norm_weight_gradient, &t.norm_bias_gradient}) {
        zeros->resize(channels);
      }
      parameters[i].weight = values_of(t.norm_weight);
      parameters[i].bias = values_of(t.norm_bias);
      network_.set(
          i, BatchNormTensors{t.norm_weight.data(), t.norm_bias.data(), t.mean.data(),
                              t.variance.data(), false, unless_frozen(i, t.norm_weight_gradient),
                              unless_frozen(i, t.norm_bias_gradient)});
    }
  }

  template <class T>
  T* unless_frozen(std::size_t node, std::vector<T>& gradient) const {
    return frozen_.contains(node) ? nullptr : gradient.data();
  }

  const Graph& graph_;
  Passes passes_;
  GraphExecutor<Element> network_;
  std::set<std::size_t> frozen_;
  std::vector<Tensors> tensors_;
};

/// In bf16, gradients of batch norm are sums of numbers whose rounding errors do not cancel as they
/// do.
void check_network(const Graph& graph) {
  for (const std::int64_t images : {64, 37}) {
    if (is_supported<float>()) Rig<float>(graph, 64).check(images, 3e-6);
    if (is_supported<Bf16Bits>()) Rig<Bf16Bits>(graph, 64).check(images, 0.2);
  }
}

TEST_CASE("A residual network with batch norm agrees with fp64") {
  const Graph graph = residual_network();
  CHECK(graph.nodes().size() == 1 + 1 + 4 + 6 + 2);  // sums and ReLUs are fused
  check_network(graph);
}

TEST_CASE("A network with pooling and biases agrees with fp64") {
  for (const bool flattens : {false, true}) check_network(pooled_network(flattens));
}

/// An activation after a batch norm, and after a convolution.
Graph activated_network(const ActivationNode& activation) {
  Graph graph({3, 8, 8});
  Value x = graph.add(activation, add_convolution_norm(graph, Graph::input(), 12, 1, 1));
  x = graph.add(convolution({12, 8, 8}, 12, 3, 1, 1, /*bias=*/true), x);
  add_head(graph, graph.add(activation, x));
  return graph;
}

TEST_CASE("Networks with each activation agree with fp64") {
  for (const Function function : kAllFunctions) {
    INFO("function " << static_cast<int>(function));
    const Graph graph = activated_network({{function, 0.25F}});
    const std::size_t fused = function == Function::kRelu    ? 2
                              : function == Function::kRelu6 ? 1
                                                             : 0;
    CHECK(graph.nodes().size() == 7 - fused);
    check_network(graph);
  }
}

/// Blocks of EfficientNet: depthwise convolutions, and a gate from the average of all pixels
/// (squeeze and excitation) or from each pixel.
Graph gated_network(bool of_pixels) {
  Graph graph({3, 10, 10});
  Value x = graph.add(ActivationNode{{Function::kSilu}},
                      add_convolution_norm(graph, Graph::input(), 9, 3, 1));
  ConvolutionNode depthwise = convolution({9, 10, 10}, 18, 3, 2, 1, /*bias=*/true);
  depthwise.shape.groups = 9;
  x = graph.add(ActivationNode{{Function::kTanh}}, graph.add(depthwise, x));
  graph.share(x);
  Value gate = x;
  if (!of_pixels) gate = graph.add(AveragePoolNode{{{18, 5, 5}, {18, 1, 1}, {0, 0}, {1, 1}}}, x);
  gate = graph.add(convolution(graph.shape_of(gate), 4, 1, 1, 0, /*bias=*/true), gate);
  gate = graph.add(convolution(graph.shape_of(gate), 18, 1, 1, 0, /*bias=*/true),
                   graph.add(ActivationNode{{Function::kSilu}}, gate));
  gate = graph.add(ActivationNode{{Function::kSigmoid}}, gate);
  add_head(graph, graph.add_product(x, gate));
  return graph;
}

TEST_CASE("Networks with gates and depthwise convolutions agree with fp64") {
  check_network(gated_network(/*of_pixels=*/false));
  check_network(gated_network(/*of_pixels=*/true));
}

/// Without any layers before a gate, of it, or both.
template <class Element>
void check_frozen(double error) {
  const Graph graph = gated_network(/*of_pixels=*/false);
  for (const auto& frozen : std::vector<std::set<std::size_t>>{
           {0, 1, 3}, {6, 8}, {0, 1, 3, 6, 8}, {0, 1, 3, 6, 8, 12}}) {
    Rig<Element>(graph, 40, Passes::kBackward, frozen).check(40, error);
  }
}

TEST_CASE("Gates get the gradients that trained layers need") {
  if (is_supported<float>()) check_frozen<float>(3e-6);
  if (is_supported<Bf16Bits>()) check_frozen<Bf16Bits>(0.2);
}

template <class Element>
void check_forward_only(const Graph& graph) {
  const ValueShape& shape = graph.shape_of(Graph::input());
  const std::vector<Element> x = Draws<Element>(13).numbers(40 * shape.channels * shape.pixels());
  CHECK(Rig<Element>(graph, 40, Passes::kForward).forward(x, 40) ==
        Rig<Element>(graph, 40).forward(x, 40));
}

TEST_CASE("Networks for the forward pass only, whose values share memory, compute the same") {
  for (const Graph& graph : {residual_network(), pooled_network(true), gated_network(false)}) {
    if (is_supported<float>()) check_forward_only<float>(graph);
    if (is_supported<Bf16Bits>()) check_forward_only<Bf16Bits>(graph);
  }
}

/// Convolutions with padding on some sides only, as after a ZeroPad2d.
Graph unevenly_padded_network() {
  Graph graph({2, 9, 9});
  const ConvolutionShape first{{2, 9, 9}, {8, 5, 5}, {3, 3}, {2, 2}};
  Value x = graph.add_relu(graph.add(ConvolutionNode{first, true}, Graph::input()));
  const ConvolutionShape second{{8, 5, 5}, {6, 6, 6}, {3, 2}, {1, 1}, {1, 0}};
  x = graph.add(ActivationNode{{Function::kTanh}}, graph.add(ConvolutionNode{second, true}, x));
  ConvolutionShape depthwise{{6, 6, 6}, {6, 6, 8}, {2, 4}, {1, 1}, {0, 2}};
  depthwise.groups = 6;
  x = graph.add(ActivationNode{{Function::kTanh}}, graph.add(ConvolutionNode{depthwise, true}, x));
  add_head(graph, x);
  return graph;
}

TEST_CASE("A network with other padding above than below agrees with fp64") {
  check_network(unevenly_padded_network());
}

}  // namespace
}  // namespace mnist_train::cpu_kernels
