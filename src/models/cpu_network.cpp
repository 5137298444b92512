#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "cpu_kernels/graph_executor.h"
#include "kernels/operations.h"
#include "models/batch_norm.h"
#include "models/layer_operations.h"
#include "models/model.h"

namespace mnist_train::models {

namespace {

using cpu_kernels::ConvolutionShape;
using cpu_kernels::Extent;
using cpu_kernels::Graph;
using cpu_kernels::GraphExecutor;
using cpu_kernels::kNoValue;
using cpu_kernels::PoolingShape;
using cpu_kernels::Value;
using cpu_kernels::ValueShape;
using network::SampleShape;
using network::SizedLayer;
using settings::ImageSize;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A node's parameters, their gradients and, if it is a batch norm, its module.
struct NodeTensors {
  std::vector<at::Tensor> parameters() const {
    return bias.defined() ? std::vector{weight, bias} : std::vector{weight};
  }

  std::size_t node;
  at::Tensor weight;
  at::Tensor bias;                  // may be undefined
  std::shared_ptr<BatchNorm> norm;  // null for a convolution or linear layer
  // From the forward pass to the backward pass; undefined if frozen:
  at::Tensor weight_gradient{};
  at::Tensor bias_gradient{};
};

/// Layers translated into a graph for cpu_kernels/.
struct CpuGraph {
  Graph graph;
  std::vector<NodeTensors> nodes;  // with parameters
  std::size_t layers;              // in the graph
  SampleShape in;                  // of the first layer
  SampleShape out;                 // of the last one
};

constexpr ImageSize kOne{1, 1};

Extent extent(const ImageSize& size) { return {size.height, size.width}; }
ValueShape image(const SampleShape& shape) { return {shape.channels, shape.height, shape.width}; }

/// Adds layers to a graph. Each `add` returns the layer's output, or kNoValue if cpu_kernels/ does
/// not support the layer; the graph is then unusable.
class Translator {
 public:
  Translator(CpuGraph& to, std::int64_t dropouts, const ModuleLookup& find_module)
      : to_(to), graph_(to.graph), dropouts_(dropouts), find_module_(find_module) {}

  Value add(const SizedLayer& sized, Value x) {
    if (padding_ && !std::holds_alternative<settings::Conv2dLayer>(sized.kind)) return kNoValue;
    return std::visit([&](const auto& layer) { return add(layer, sized, x); }, sized.kind);
  }
  /// Returns whether the graph computes all added layers: false right after a zero_pad2d, which
  /// becomes part of the next convolution.
  bool is_complete() const { return !padding_; }

 private:
  Value add_all(const std::vector<SizedLayer>& layers, Value x) {
    for (const SizedLayer& sized : layers) {
      x = add(sized, x);
      if (x == kNoValue) break;
    }
    return padding_ ? kNoValue : x;
  }

  /// Adds a node and records its tensors.
  template <class Node>
  Value add_with_tensors(const Node& node, const SizedLayer& sized, Value x) {
    const Value y = graph_.add(node, x);
    const std::shared_ptr<torch::nn::Module> module = find_module_(sized);
    const auto parameters = module->named_parameters(/*recurse=*/false);
    const at::Tensor* const bias = parameters.find("bias");
    to_.nodes.push_back({graph_.nodes().size() - 1, parameters["weight"],
                         bias == nullptr ? at::Tensor() : *bias,
                         std::dynamic_pointer_cast<BatchNorm>(module)});
    return y;
  }

  // cpu_kernels/ lacks dilation, groups other than depthwise ones, and padded average pooling.

  Value add(const settings::Conv2dLayer& layer, const SizedLayer& sized, Value x) {
    ConvolutionShape shape{graph_.shape_of(x), image(sized.out), extent(layer.kernel_size)};
    shape.depthwise = layer.groups > 1;
    if (layer.dilation != kOne || (shape.depthwise && (shape.in.channels != layer.groups ||
                                                       shape.out.channels != layer.groups))) {
      return kNoValue;
    }
    shape.stride = extent(layer.stride);
    // "same": as in PyTorch, an odd number of zeros has the extra one at the bottom or right.
    shape.padding = layer.padding
                        ? extent(*layer.padding)
                        : Extent{(shape.kernel.height - 1) / 2, (shape.kernel.width - 1) / 2};
    if (padding_) {
      shape.padding.height += padding_->top;
      shape.padding.width += padding_->left;
      padding_.reset();
    } else if (shape.in != image(sized.in)) {
      return kNoValue;
    }
    return add_with_tensors(cpu_kernels::ConvolutionNode{shape}, sized, x);
  }

  /// A linear layer becomes a convolution of one-pixel images.
  Value add(const settings::LinearLayer&, const SizedLayer& sized, Value x) {
    const ConvolutionShape shape{graph_.shape_of(x), {sized.out.elements(), 1, 1}, {1, 1}};
    return add_with_tensors(cpu_kernels::ConvolutionNode{shape}, sized, x);
  }

  Value add(const settings::BatchNormLayer& layer, const SizedLayer& sized, Value x) {
    return add_with_tensors(cpu_kernels::BatchNormNode{layer.eps, layer.momentum}, sized, x);
  }

  Value add(const settings::ActivationLayer& layer, const SizedLayer&, Value x) {
    const auto engine = activation_function(layer).engine;
    return engine ? graph_.add(cpu_kernels::ActivationNode{*engine}, x) : kNoValue;
  }

  Value add(const settings::MaxPool2dLayer& layer, const SizedLayer& sized, Value x) {
    const PoolingShape shape{graph_.shape_of(x), image(sized.out), extent(layer.kernel_size),
                             extent(layer.stride.value()), extent(layer.padding)};
    return layer.dilation == kOne && can_max_pool(shape)
               ? graph_.add(cpu_kernels::MaxPoolNode{shape}, x)
               : kNoValue;
  }
  Value add(const settings::AvgPool2dLayer& layer, const SizedLayer& sized, Value x) {
    if (layer.padding != ImageSize{0, 0}) return kNoValue;
    return add_average(x, sized, extent(layer.kernel_size), extent(layer.stride.value()));
  }
  Value add(const settings::AdaptiveAvgPool2dLayer&, const SizedLayer& sized, Value x) {
    const ValueShape& in = graph_.shape_of(x);
    if (image(sized.out).pixels() > 1) return kNoValue;
    return add_average(x, sized, {in.height, in.width}, {1, 1});
  }
  Value add_average(Value x, const SizedLayer& sized, const Extent& kernel, const Extent& stride) {
    const PoolingShape shape{graph_.shape_of(x), image(sized.out), kernel, stride};
    return has_small_plan(shape) ? graph_.add(cpu_kernels::AveragePoolNode{shape}, x) : kNoValue;
  }

  Value add(const settings::ZeroPad2dLayer& layer, const SizedLayer&, Value x) {
    const auto& [left, right, top, bottom] = layer.padding;
    if (left < 0 || right < 0 || top < 0 || bottom < 0) return kNoValue;
    padding_ = layer.padding;
    return x;
  }

  Value add(const settings::DropoutLayer& layer, const SizedLayer&, Value x) {
    return graph_.add(cpu_kernels::DropoutNode{dropouts_++, layer.p}, x);
  }

  Value add(const settings::FlattenLayer&, const SizedLayer&, Value x) {
    return graph_.shape_of(x).pixels() == 1 ? x : graph_.add(cpu_kernels::FlattenNode{}, x);
  }

  Value add(const settings::ResidualLayer& layer, const SizedLayer& sized, Value x) {
    graph_.share(x);
    // The shortcut comes first, so that the sum is fused with the last of the inner layers.
    const Value shortcut = add_all(sized.shortcut, x);
    if (shortcut == kNoValue) return kNoValue;
    const Value y = add_all(sized.layers, x);
    if (y == kNoValue || y == shortcut || graph_.shape_of(y) != graph_.shape_of(shortcut)) {
      return kNoValue;
    }
    const Value sum = graph_.add_sum(y, shortcut);
    if (!layer.activation) return sum;
    return add(settings::ActivationLayer{.function = *layer.activation}, sized, sum);
  }

  Value add(const settings::SequentialLayer&, const SizedLayer& sized, Value x) {
    return add_all(sized.layers, x);
  }
  Value add(const settings::RepeatLayer&, const SizedLayer& sized, Value x) {
    return add_all(sized.layers, x);
  }

  // Not supported by cpu_kernels/.
  static Value add(const settings::GroupNormLayer&, const SizedLayer&, Value) { return kNoValue; }
  static Value add(const settings::GateLayer&, const SizedLayer&, Value) { return kNoValue; }

  CpuGraph& to_;
  Graph& graph_;
  std::int64_t dropouts_;
  const ModuleLookup& find_module_;
  std::optional<settings::Edges> padding_;  // for the convolution that must follow
};

/// Returns a graph of as many leading layers as cpu_kernels/ can compute, possibly none.
/// `dropouts` is the number of dropout layers before `layers`.
CpuGraph translate(std::span<const SizedLayer* const> layers, std::int64_t dropouts,
                   const ModuleLookup& find_module) {
  const SampleShape& in = layers.front()->in;
  // Images that are flattened at once are read as vectors: in bf16, these fill whole words of two
  // channels, but a grayscale image would fill only half of each.
  const bool is_flat =
      !in.is_image || std::holds_alternative<settings::FlattenLayer>(layers.front()->kind);
  const ValueShape shape = is_flat ? ValueShape{in.elements(), 1, 1} : image(in);
  CpuGraph result{Graph(shape), {}, 0, in, in};
  Translator translator(result, dropouts, find_module);
  Value x = Graph::input();
  std::size_t complete = 0;
  for (const SizedLayer* sized : layers) {
    x = translator.add(*sized, x);
    if (x == kNoValue) break;
    ++result.layers;
    result.out = sized->out;
    if (translator.is_complete()) complete = result.layers;
  }
  if (complete == layers.size()) return result;
  if (complete == 0) return {Graph(shape), {}, 0, in, in};
  return translate(layers.first(complete), dropouts, find_module);  // drops incomplete layers
}

constexpr std::ptrdiff_t kMinWeightedLayers = 2;
constexpr std::int64_t kMinImages = 4;  // fewer are not worthwhile in a forward-only pass

template <class Element>
Element* data_ptr(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<Element*>(tensor.mutable_data_ptr()) : nullptr;
}

/// Returns x [N,C,H,W] in channels_last format or, if `shape` has a single pixel, as [N,F].
at::Tensor plain(const at::Tensor& x, const ValueShape& shape) {
  return shape.pixels() == 1 ? x.flatten(1).contiguous()
                             : x.contiguous(at::MemoryFormat::ChannelsLast);
}

/// Executors for one element type, planned when they are first used. The key tells whether they are
/// planned for a backward pass.
template <class Element>
using Executors = std::map<bool, std::unique_ptr<GraphExecutor<Element>>>;

class PlannedNetwork {
 public:
  explicit PlannedNetwork(CpuGraph graph) : graph_(std::move(graph)) {}

  at::Tensor forward(const at::Tensor& x, GradientDestinations& destinations, bool training,
                     const at::Tensor& seeds) {
    if (!can_compute(x)) return {};
    std::vector<NodeTensors>& nodes = graph_.nodes;
    const auto is_trained = [](const NodeTensors& node) {
      return std::ranges::any_of(node.parameters(), &at::Tensor::requires_grad);
    };
    const bool has_backward =
        at::GradMode::is_enabled() && (x.requires_grad() || std::ranges::any_of(nodes, is_trained));
    if (!has_backward) return compute(x, training, seeds, has_backward);
    ++forward_count_;
    seeds_ = seeds;  // the backward pass reads them
    sizes_ = x.sizes().vec();
    bool have_destinations = false;
    // Returns a tensor for the gradient of a parameter; undefined if the parameter is frozen.
    const auto gradient_of = [&](const at::Tensor& parameter) -> at::Tensor {
      if (!parameter.defined() || !parameter.requires_grad()) return {};
      const at::Tensor buffer = destinations.take(parameter);
      have_destinations = have_destinations || buffer.defined();
      return buffer.defined() ? buffer.detach()
                              : at::empty_strided(parameter.sizes(), parameter.strides(),
                                                  parameter.options().requires_grad(false));
    };
    for (NodeTensors& node : nodes) {
      node.weight_gradient = gradient_of(node.weight);
      node.bias_gradient = gradient_of(node.bias);
    }
    to_input_ = x.requires_grad();
    {
      const at::NoGradGuard no_grad;
      output_ = compute(x, training, seeds, has_backward);
    }
    // Gradients without destination buffers may be sent to other ranks during the backward pass, so
    // autograd receives the gradients of each node as soon as they are computed.
    const std::int64_t nodes_per_stage = have_destinations ? std::ssize(nodes) : 1;
    at::Tensor y = x;
    for (std::int64_t begin = 0; begin < std::ssize(nodes); begin += nodes_per_stage) {
      std::vector<at::Tensor> parameters;
      const std::int64_t end = begin + nodes_per_stage;
      for (std::int64_t i = begin; i < end; ++i) {
        for (const at::Tensor& parameter : nodes[i].parameters()) parameters.push_back(parameter);
      }
      y = Stage::apply(y, at::TensorList(parameters), this, begin, end);
    }
    output_.reset();
    return y;
  }

 private:
  /// An autograd operation for nodes `begin` to `end` of `graph_.nodes` and for those without
  /// parameters after each (the first stage: also before it). Empty tensors link the stages.
  class Stage : public torch::autograd::Function<Stage> {
   public:
    static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                              at::TensorList /*parameters*/, PlannedNetwork* planned,
                              std::int64_t begin, std::int64_t end) {
      context->saved_data["network"] = reinterpret_cast<std::int64_t>(planned);
      context->saved_data["forward_count"] = planned->forward_count_;
      context->saved_data["begin"] = begin;
      context->saved_data["end"] = end;
      const bool is_last = end == std::ssize(planned->graph_.nodes);
      return is_last ? planned->output_ : at::empty({0}, input.options());
    }

    static variable_list backward(AutogradContext* context, const variable_list& gradients) {
      auto* const planned =
          // NOLINTNEXTLINE(performance-no-int-to-ptr): autograd saves integers but not pointers
          reinterpret_cast<PlannedNetwork*>(context->saved_data["network"].toInt());
      if (context->saved_data["forward_count"].toInt() != planned->forward_count_) {
        throw Error(ExitCode::kRunFailed,
                    "another forward pass ran before the backward pass of this one");
      }
      variable_list results = planned->gradients(context->saved_data["begin"].toInt(),
                                                 context->saved_data["end"].toInt(), gradients[0]);
      results.resize(results.size() + 3);
      return results;
    }
  };

  bool can_compute(const at::Tensor& x) const {
    const at::ScalarType type = x.scalar_type();
    const bool is_supported =
        type == at::kFloat
            ? cpu_kernels::is_supported<float>()
            : type == at::kBFloat16 && cpu_kernels::is_supported<cpu_kernels::Bf16Bits>();
    if (!is_supported || !x.is_cpu() || kernels::are_used(x.device())) return false;
    if (x.size(0) < kMinImages && !at::GradMode::is_enabled()) return false;
    for (const NodeTensors& node : graph_.nodes) {
      const at::Tensor& weight = node.weight;
      const bool is_linear = weight.dim() == 2;
      if (!node.norm && (weight.scalar_type() != type ||
                         !weight.is_contiguous(is_linear ? at::MemoryFormat::Contiguous
                                                         : at::MemoryFormat::ChannelsLast))) {
        return false;
      }
    }
    const SampleShape& in = graph_.in;
    return in.is_image ? x.sizes().slice(1) == at::IntArrayRef{in.channels, in.height, in.width}
                       : x.sizes().slice(1) == at::IntArrayRef{in.elements()};
  }

  /// Returns the result of `action` for the executors of this tensor's type.
  template <class Action>
  auto with_executors(const at::Tensor& like, const Action& action) {
    return like.scalar_type() == at::kFloat ? action(fp32_) : action(bf16_);
  }

  at::Tensor compute(const at::Tensor& x, bool training, const at::Tensor& seeds,
                     bool has_backward) {
    const std::int64_t images = x.size(0);
    const SampleShape& out = graph_.out;
    return with_executors(x, [&]<class Element>(Executors<Element>& executors) {
      std::unique_ptr<GraphExecutor<Element>>& planned = executors[has_backward];
      if (planned == nullptr || planned->capacity() < images) {
        planned = nullptr;  // frees its memory first
        planned = std::make_unique<GraphExecutor<Element>>(graph_.graph, images, has_backward);
      }
      GraphExecutor<Element>& executor = *planned;
      bind(executor);
      if (seeds.defined()) executor.set_sample_seeds(seeds.const_data_ptr<std::int64_t>());
      const at::Tensor in = plain(x, in_shape());
      executor.forward(data_ptr<const Element>(in), {images}, training);
      for (const NodeTensors& node : graph_.nodes) {
        if (node.norm && node.norm->is_training()) node.norm->count_batch();
      }
      at::Tensor y = out.is_image ? at::empty({images, out.channels, out.height, out.width},
                                              x.options(), at::MemoryFormat::ChannelsLast)
                                  : at::empty({images, out.elements()}, x.options());
      executor.read_output(data_ptr<Element>(y));
      return y;
    });
  }

  /// Sets the tensors of all nodes.
  template <class Element>
  void bind(GraphExecutor<Element>& executor) const {
    for (const NodeTensors& node : graph_.nodes) {
      if (node.norm) {
        executor.set(
            node.node,
            cpu_kernels::BatchNormTensors{
                data_ptr<float>(node.weight), data_ptr<float>(node.bias),
                data_ptr<float>(node.norm->running_mean()),
                data_ptr<float>(node.norm->running_var()), !node.norm->is_training(),
                data_ptr<float>(node.weight_gradient), data_ptr<float>(node.bias_gradient)});
      } else {
        executor.set(node.node, cpu_kernels::ConvolutionTensors<Element>{
                                    data_ptr<Element>(node.weight), data_ptr<Element>(node.bias),
                                    data_ptr<Element>(node.weight_gradient),
                                    data_ptr<Element>(node.bias_gradient)});
      }
    }
    // Either all batch norms with batch statistics are synchronised or none are.
    const auto synchronized = std::ranges::find_if(
        graph_.nodes, [](const NodeTensors& n) { return n.norm && n.norm->sum_over_ranks(); });
    if (synchronized == graph_.nodes.end()) return;
    executor.set_sum_over_ranks([norm = synchronized->norm](double* numbers, std::int64_t count) {
      at::Tensor sums = at::from_blob(numbers, {count}, at::kDouble);
      norm->sum_over_ranks()(sums);
    });
  }

  /// Continues the backward pass through a stage. Returns the gradients of the stage's input and
  /// parameters; those that are not needed are undefined.
  std::vector<at::Tensor> gradients(std::int64_t begin, std::int64_t end, const at::Tensor& dy) {
    at::Tensor dx;
    if (begin > 0) dx = at::empty({0}, dy.options());
    with_executors(dy, [&]<class Element>(Executors<Element>& executors) {
      GraphExecutor<Element>& executor = *executors.at(true);
      if (end == std::ssize(graph_.nodes)) {
        const at::Tensor plain_dy =
            plain(dy, graph_.graph.shape_of(graph_.graph.nodes().back().out));
        executor.begin_backward(data_ptr<const Element>(plain_dy), to_input_);
      }
      executor.backward_to(begin == 0 ? 0 : graph_.nodes[begin].node);
      if (begin > 0 || !to_input_) return;
      dx = at::empty(
          sizes_, dy.options(),
          in_shape().pixels() == 1 ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast);
      executor.read_input_gradient(data_ptr<Element>(dx));
    });
    std::vector<at::Tensor> grads{dx};
    for (std::int64_t i = begin; i < end; ++i) {
      NodeTensors& node = graph_.nodes[i];
      grads.push_back(std::exchange(node.weight_gradient, {}));
      if (node.bias.defined()) grads.push_back(std::exchange(node.bias_gradient, {}));
    }
    return grads;
  }

  const ValueShape& in_shape() const { return graph_.graph.shape_of(Graph::input()); }

  CpuGraph graph_;
  Executors<float> fp32_;
  Executors<cpu_kernels::Bf16Bits> bf16_;
  // State of the last forward pass that has a backward pass:
  std::int64_t forward_count_ = 0;
  bool to_input_ = false;            // x requires a gradient
  std::vector<std::int64_t> sizes_;  // of x
  at::Tensor output_;
  at::Tensor seeds_;
};

}  // namespace

CpuNetwork make_cpu_network(std::span<const SizedLayer* const> layers, std::int64_t dropouts,
                            const ModuleLookup& find_module) {
  CpuGraph graph = translate(layers, dropouts, find_module);
  const auto weighted = std::ranges::count_if(graph.nodes, [](const auto& n) { return !n.norm; });
  if (weighted < kMinWeightedLayers) return {};
  const std::size_t count = graph.layers;
  const auto planned = std::make_shared<PlannedNetwork>(std::move(graph));
  return {count, std::bind_front(&PlannedNetwork::forward, planned)};
}

}  // namespace mnist_train::models
