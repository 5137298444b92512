#include <optional>
#include <utility>
#include <variant>

#include "models/cpu_network.h"

namespace mnist_train::models {

namespace {

using cpu_kernels::ConvolutionShape;
using cpu_kernels::Extent;
using cpu_kernels::Graph;
using cpu_kernels::PoolingShape;
using cpu_kernels::Value;
using cpu_kernels::ValueShape;
using network::SampleShape;
using network::SizedLayer;
using settings::ImageSize;

Extent extent(const ImageSize& size) { return {size.height, size.width}; }
ValueShape image(const SampleShape& shape) { return {shape.channels, shape.height, shape.width}; }

cpu_kernels::ActivationSpec engine_activation(const settings::ActivationLayer& layer) {
  using cpu_kernels::Function;
  const auto function = [&] {
    switch (layer.function) {
      case settings::Activation::kRelu:
        return Function::kRelu;
      case settings::Activation::kRelu6:
        return Function::kRelu6;
      case settings::Activation::kLeakyRelu:
        return Function::kLeakyRelu;
      case settings::Activation::kHardsigmoid:
        return Function::kHardsigmoid;
      case settings::Activation::kHardswish:
        return Function::kHardswish;
      case settings::Activation::kSigmoid:
        return Function::kSigmoid;
      case settings::Activation::kTanh:
        return Function::kTanh;
      case settings::Activation::kSilu:
        return Function::kSilu;
      case settings::Activation::kGelu:
        return layer.tanh_approximates ? Function::kTanhGelu : Function::kGelu;
    }
    return Function::kRelu;
  };
  return {function(), static_cast<float>(layer.negative_slope)};
}

/// Adds layers to a graph. Functions return the output, or nothing if cpu_kernels/ does not know a
/// layer; then the graph is of no use.
class Translator {
 public:
  Translator(CpuGraph& to, std::int64_t dropouts, const ModuleOf& module_of)
      : to_(to), graph_(to.graph), dropouts_(dropouts), module_of_(module_of) {}

  std::optional<Value> add(const SizedLayer& sized, Value x) {
    if (padding_ && !std::holds_alternative<settings::Conv2dLayer>(sized.kind)) {
      return std::nullopt;
    }
    return std::visit([&](const auto& layer) { return add(layer, sized, x); }, sized.kind);
  }
  /// Returns whether the graph computes all layers that were added. It does not yet after a
  /// zero_pad2d, which becomes part of a convolution.
  bool is_complete() const { return !padding_; }

 private:
  std::optional<Value> add_all(const std::vector<SizedLayer>& layers, Value x) {
    for (const SizedLayer& sized : layers) {
      const std::optional<Value> y = add(sized, x);
      if (!y) return std::nullopt;
      x = *y;
    }
    if (padding_) return std::nullopt;
    return x;
  }

  /// Names the tensors of the last node.
  void add_tensors(const SizedLayer& sized) {
    const std::shared_ptr<torch::nn::Module> module = module_of_(sized);
    const auto parameters = module->named_parameters(/*recurse=*/false);
    const at::Tensor* const bias = parameters.find("bias");
    to_.nodes.push_back({graph_.nodes().size() - 1, parameters["weight"],
                         bias == nullptr ? at::Tensor() : *bias,
                         std::dynamic_pointer_cast<BatchNorm>(module)});
  }

  std::optional<Value> add(const settings::Conv2dLayer& layer, const SizedLayer& sized, Value x) {
    ConvolutionShape shape{graph_.shape_of(x), image(sized.out), extent(layer.kernel_size)};
    shape.stride = extent(layer.stride);
    shape.dilation = extent(layer.dilation);
    shape.groups = layer.groups;
    // "same": of an odd number of zeros, the last is below and to the right, as in PyTorch.
    shape.padding = layer.padding ? extent(*layer.padding)
                                  : Extent{shape.dilation.height * (shape.kernel.height - 1) / 2,
                                           shape.dilation.width * (shape.kernel.width - 1) / 2};
    if (padding_) {
      shape.padding.height += padding_->top;
      shape.padding.width += padding_->left;
      padding_.reset();
    } else if (shape.in != image(sized.in)) {
      return std::nullopt;
    }
    const Value y = graph_.add(cpu_kernels::ConvolutionNode{shape, layer.bias}, x);
    add_tensors(sized);
    return y;
  }

  /// A convolution with a kernel of the image's size.
  std::optional<Value> add(const settings::LinearLayer& layer, const SizedLayer& sized, Value x) {
    constexpr std::int64_t kManyOutputs = 64;  // whose weights exceed the images of most batches
    if (graph_.shape_of(x).pixels() > 1 && sized.out.elements() >= kManyOutputs) {
      x = graph_.add(cpu_kernels::FlattenNode{}, x);
    }
    const ValueShape& in = graph_.shape_of(x);
    const ConvolutionShape shape{in, {sized.out.elements(), 1, 1}, {in.height, in.width}};
    const Value y = graph_.add(cpu_kernels::ConvolutionNode{shape, layer.bias}, x);
    add_tensors(sized);
    return y;
  }

  std::optional<Value> add(const settings::BatchNormLayer& layer, const SizedLayer& sized,
                           Value x) {
    if (graph_.shape_of(x) != image(sized.in)) return std::nullopt;  // it was flattened
    const Value y = graph_.add(cpu_kernels::BatchNormNode{layer.eps, layer.momentum}, x);
    add_tensors(sized);
    return y;
  }

  std::optional<Value> add(const settings::ActivationLayer& layer, const SizedLayer&, Value x) {
    return graph_.add(cpu_kernels::ActivationNode{engine_activation(layer)}, x);
  }

  std::optional<Value> add(const settings::MaxPool2dLayer& layer, const SizedLayer& sized,
                           Value x) {
    PoolingShape shape{graph_.shape_of(x), image(sized.out), extent(layer.kernel_size),
                       extent(layer.stride.value())};
    shape.padding = extent(layer.padding);
    shape.dilation = extent(layer.dilation);
    if (!can_pool_max(shape)) return std::nullopt;
    return graph_.add(cpu_kernels::MaxPoolNode{shape}, x);
  }
  std::optional<Value> add(const settings::AvgPool2dLayer& layer, const SizedLayer& sized,
                           Value x) {
    PoolingShape shape{graph_.shape_of(x), image(sized.out), extent(layer.kernel_size),
                       extent(layer.stride.value())};
    shape.padding = extent(layer.padding);
    shape.counts_padding = layer.count_include_pad;
    return graph_.add(cpu_kernels::AveragePoolNode{shape}, x);
  }
  std::optional<Value> add(const settings::AdaptiveAvgPool2dLayer&, const SizedLayer& sized,
                           Value x) {
    const PoolingShape shape{graph_.shape_of(x), image(sized.out), {0, 0}, {1, 1}};
    return graph_.add(cpu_kernels::AveragePoolNode{shape}, x);
  }

  std::optional<Value> add(const settings::ZeroPad2dLayer& layer, const SizedLayer&, Value x) {
    const auto& [left, right, top, bottom] = layer.padding;
    if (left < 0 || right < 0 || top < 0 || bottom < 0) return std::nullopt;
    padding_ = layer.padding;
    return x;
  }

  std::optional<Value> add(const settings::DropoutLayer& layer, const SizedLayer&, Value x) {
    return graph_.add(cpu_kernels::DropoutNode{dropouts_++, layer.p}, x);
  }

  std::optional<Value> add(const settings::FlattenLayer&, const SizedLayer&, Value x) { return x; }

  std::optional<Value> add(const settings::ResidualLayer& layer, const SizedLayer& sized, Value x) {
    graph_.share(x);
    // The shortcut comes first, so that the sum is fused with the last of the other layers.
    const std::optional<Value> shortcut = add_all(sized.shortcut, x);
    if (!shortcut) return std::nullopt;
    const std::optional<Value> y = add_all(sized.layers, x);
    if (!y || *y == *shortcut || graph_.shape_of(*y) != graph_.shape_of(*shortcut)) {
      return std::nullopt;
    }
    const Value sum = graph_.add_sum(*y, *shortcut);
    if (!layer.activation) return sum;
    return graph_.add(
        cpu_kernels::ActivationNode{engine_activation({.function = *layer.activation})}, sum);
  }

  /// An output of one pixel counts for all pixels of its channel.
  std::optional<Value> add(const settings::GateLayer&, const SizedLayer& sized, Value x) {
    graph_.share(x);
    const std::optional<Value> gate = add_all(sized.layers, x);
    if (!gate) return std::nullopt;
    const ValueShape& in = graph_.shape_of(x);
    const ValueShape& factor = graph_.shape_of(*gate);
    const bool is_pixel = factor.channels == in.channels && factor.pixels() == 1;
    if (!is_pixel && factor != in) return std::nullopt;
    return graph_.add_product(x, *gate);
  }

  std::optional<Value> add(const settings::SequentialLayer&, const SizedLayer& sized, Value x) {
    return add_all(sized.layers, x);
  }
  std::optional<Value> add(const settings::RepeatLayer&, const SizedLayer& sized, Value x) {
    return add_all(sized.layers, x);
  }

  // A layer that cpu_kernels/ does not know.
  static std::optional<Value> add(const settings::GroupNormLayer&, const SizedLayer&, Value) {
    return std::nullopt;
  }

  CpuGraph& to_;
  Graph& graph_;
  std::int64_t dropouts_;
  const ModuleOf& module_of_;
  std::optional<settings::Edges> padding_;  // of the convolution that must follow
};

}  // namespace

CpuGraph translate(std::span<const SizedLayer* const> layers, std::int64_t dropouts,
                   const ModuleOf& module_of) {
  const SampleShape& in = layers.front()->in;
  // Elements of a vector fill the words of bf16, channels of gray images only half of them.
  const bool is_flat =
      !in.is_image || std::holds_alternative<settings::FlattenLayer>(layers.front()->kind);
  const ValueShape shape = is_flat ? ValueShape{in.elements(), 1, 1} : image(in);
  CpuGraph best{Graph(shape), {}, 0, in, in};
  CpuGraph next = best;
  Translator translator(next, dropouts, module_of);
  Value x = Graph::input();
  for (const SizedLayer* sized : layers) {
    const std::optional<Value> y = translator.add(*sized, x);
    if (!y) break;
    x = *y;
    ++next.layers;
    next.out = sized->out;
    if (translator.is_complete()) best = next;
  }
  return best;
}

}  // namespace mnist_train::models
