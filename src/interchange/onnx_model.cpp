#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>
#include <variant>

#include "base/error.h"
#include "interchange/exports.h"
#include "interchange/onnx_graph.h"

namespace mnist_train::interchange {

namespace {

using network::SizedLayer;
using settings::Activation;
using settings::ImageSize;
using settings::sides;
using Sizes = std::vector<std::int64_t>;

/// Protobuf messages must be smaller than 2 GiB; 16 MiB are reserved for everything but parameters.
constexpr std::int64_t kMaxParameters = ((std::int64_t{2} << 30) - (std::int64_t{16} << 20)) / 4;

/// Padding of an image.
struct SidePadding {
  ImageSize begin;  // above, left
  ImageSize end;    // below, right

  bool operator==(const SidePadding&) const = default;
};

/// Windows that slide over one side of an image.
struct Windows {
  std::int64_t side;
  std::int64_t count;
  std::int64_t kernel;
  std::int64_t stride;
  std::int64_t padding;
  std::int64_t dilation;

  /// Returns the number of pixels by which the last window extends beyond the image.
  std::int64_t overhang() const {
    const std::int64_t end = (count - 1) * stride - padding + dilation * (kernel - 1) + 1;
    return std::max<std::int64_t>(end - side, 0);
  }

  bool is_empty(std::int64_t window) const {
    for (std::int64_t i = 0; i < kernel; ++i) {
      const std::int64_t pixel = window * stride - padding + i * dilation;
      if (pixel >= 0 && pixel < side) return false;
    }
    return true;
  }

  bool any_is_empty() const {
    for (std::int64_t window = 0; window < count; ++window) {
      if (is_empty(window)) return true;
    }
    return false;
  }
};

template <class Pool>
Windows rows(const SizedLayer& sized, const Pool& layer, const ImageSize& dilation) {
  return {sized.in.height,      sized.out.height,     layer.kernel_size.height,
          layer.stride->height, layer.padding.height, dilation.height};
}

template <class Pool>
Windows columns(const SizedLayer& sized, const Pool& layer, const ImageSize& dilation) {
  return {sized.in.width,      sized.out.width,     layer.kernel_size.width,
          layer.stride->width, layer.padding.width, dilation.width};
}

/// Returns padding with which the windows of a pooling layer do not extend beyond it, regardless of
/// `ceil_mode`.
template <class Pool>
SidePadding padding_of(const SizedLayer& sized, const Pool& layer, const ImageSize& dilation) {
  if (!layer.ceil_mode) return {layer.padding, layer.padding};
  return {layer.padding,
          {rows(sized, layer, dilation).overhang(), columns(sized, layer, dilation).overhang()}};
}

Sizes pads(const SidePadding& padding) {
  const auto& [begin, end] = padding;
  return {begin.height, begin.width, end.height, end.width};
}

/// Splits the padding of both ends. Like PyTorch, puts the larger half at the end.
SidePadding halves(const ImageSize& both) {
  const ImageSize begin{both.height / 2, both.width / 2};
  return {begin, {both.height - begin.height, both.width - begin.width}};
}

/// Adds layers to a graph. Each function takes the name of the input tensor and returns the name of
/// the output tensor.
class LayerWriter {
 public:
  LayerWriter(OnnxGraph& graph, const FindWeight& find_weight)
      : graph_(graph), find_weight_(find_weight) {}

  std::string add_all(const std::vector<SizedLayer>& layers, std::string x) {
    for (const SizedLayer& sized : layers) {
      x = std::visit([&](const auto& layer) { return add(sized, layer, x); }, sized.kind);
    }
    return x;
  }

 private:
  std::string add(const SizedLayer& sized, const settings::Conv2dLayer& layer,
                  const std::string& x) {
    const ImageSize& kernel = layer.kernel_size;
    const std::int64_t out = layer.out_channels.value();
    std::vector<std::string> inputs{
        x, add_weight(sized, "weight",
                      {out, sized.in.channels / layer.groups, kernel.height, kernel.width})};
    if (layer.bias) inputs.push_back(add_weight(sized, "bias", {out}));
    const SidePadding padding = layer.padding ? SidePadding{*layer.padding, *layer.padding}
                                              : halves({layer.dilation.height * (kernel.height - 1),
                                                        layer.dilation.width * (kernel.width - 1)});
    return add_node(sized, "Conv", std::move(inputs),
                    {{"kernel_shape", sides(kernel)},
                     {"strides", sides(layer.stride)},
                     {"pads", pads(padding)},
                     {"dilations", sides(layer.dilation)},
                     {"group", layer.groups}});
  }

  std::string add(const SizedLayer& sized, const settings::LinearLayer& layer,
                  const std::string& x) {
    const std::int64_t out = layer.out_features.value();
    std::vector<std::string> inputs{x, add_weight(sized, "weight", {out, sized.in.channels})};
    if (layer.bias) inputs.push_back(add_weight(sized, "bias", {out}));
    return add_node(sized, "Gemm", std::move(inputs), {{"transB", std::int64_t{1}}});
  }

  std::string add(const SizedLayer& sized, const settings::BatchNormLayer& layer,
                  const std::string& x) {
    std::vector<std::string> inputs{x};
    for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
      inputs.push_back(add_weight(sized, name, {sized.in.channels}));
    }
    return add_node(sized, "BatchNormalization", std::move(inputs),
                    {{"epsilon", static_cast<float>(layer.eps)}});
  }

  /// Normalises each group as one channel, because operator set 17 has no group norm.
  std::string add(const SizedLayer& sized, const settings::GroupNormLayer& layer,
                  const std::string& x) {
    const auto groups = static_cast<std::size_t>(layer.num_groups);
    const std::string grouped =
        add_node(sized, "Reshape", {x, graph_.add_constant({0, layer.num_groups, -1})});
    const std::string normal =
        add_node(sized, "InstanceNormalization",
                 {grouped, graph_.add_constant({layer.num_groups}, std::vector<float>(groups, 1)),
                  graph_.add_constant({layer.num_groups}, std::vector<float>(groups, 0))},
                 {{"epsilon", static_cast<float>(layer.eps)}});
    Sizes shape{0, sized.in.channels};
    Sizes channels{sized.in.channels};
    if (sized.in.is_image) {
      shape.insert(shape.end(), {sized.in.height, sized.in.width});
      channels.insert(channels.end(), {1, 1});
    }
    const std::string y = add_node(sized, "Reshape", {normal, graph_.add_constant(shape)});
    const auto by_channel = [&](const std::string& name) {
      return add_node(
          sized, "Reshape",
          {add_weight(sized, name, {sized.in.channels}), graph_.add_constant(channels)});
    };
    return add_node(sized, "Add",
                    {add_node(sized, "Mul", {y, by_channel("weight")}), by_channel("bias")});
  }

  std::string add(const SizedLayer& sized, const settings::ActivationLayer& layer,
                  const std::string& x) {
    switch (layer.function) {
      case Activation::kRelu:
        return add_node(sized, "Relu", {x});
      case Activation::kTanh:
        return add_node(sized, "Tanh", {x});
      case Activation::kSigmoid:
        return add_node(sized, "Sigmoid", {x});
      case Activation::kSilu:
        return add_node(sized, "Mul", {x, add_node(sized, "Sigmoid", {x})});
      case Activation::kGelu:
        return add_gelu(sized, layer.tanh_approximates, x);
      case Activation::kLeakyRelu:
        return add_node(sized, "LeakyRelu", {x},
                        {{"alpha", static_cast<float>(layer.negative_slope)}});
    }
    return {};
  }

  /// Adds x * (1 + erf(x / sqrt(2))) / 2, or with tanh(sqrt(2 / pi) * (x + 0.044715 x^3)) for erf.
  std::string add_gelu(const SizedLayer& sized, bool tanh_approximates, const std::string& x) {
    const auto op = [&](const char* operation, std::vector<std::string> inputs) {
      return add_node(sized, operation, std::move(inputs));
    };
    std::string step;
    if (tanh_approximates) {
      const std::string cube = op("Mul", {op("Mul", {x, x}), x});
      const std::string sum = op("Add", {x, op("Mul", {cube, graph_.add_constant(0.044715)})});
      const double factor = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
      step = op("Tanh", {op("Mul", {sum, graph_.add_constant(factor)})});
    } else {
      step = op("Erf", {op("Mul", {x, graph_.add_constant(1 / std::numbers::sqrt2)})});
    }
    return op("Mul", {op("Mul", {x, graph_.add_constant(0.5)}),
                      op("Add", {step, graph_.add_constant(1.0)})});
  }

  std::string add(const SizedLayer& sized, const settings::MaxPool2dLayer& layer, std::string x) {
    if (rows(sized, layer, layer.dilation).any_is_empty() ||
        columns(sized, layer, layer.dilation).any_is_empty()) {
      throw network::LayerError(sized.pointer,
                                "some of its windows contain only padding, for which ONNX does not "
                                "define a result; use less padding or dilation");
    }
    SidePadding padding = padding_of(sized, layer, layer.dilation);
    if (padding.begin != padding.end) {
      // Padding of operators must be smaller than the kernel, but dilated windows may need more.
      x = add_pad(sized, padding, -std::numeric_limits<float>::infinity(), x);
      padding = {};
    }
    return add_node(sized, "MaxPool", {x},
                    {{"kernel_shape", sides(layer.kernel_size)},
                     {"strides", sides(layer.stride.value())},
                     {"pads", pads(padding)},
                     {"dilations", sides(layer.dilation)}});
  }

  std::string add(const SizedLayer& sized, const settings::AvgPool2dLayer& layer, std::string x) {
    SidePadding padding = padding_of(sized, layer, {1, 1});
    bool counts_padding = layer.count_include_pad;
    const ImageSize beyond{std::max<std::int64_t>(padding.end.height - layer.padding.height, 0),
                           std::max<std::int64_t>(padding.end.width - layer.padding.width, 0)};
    if (counts_padding && beyond != ImageSize{}) {
      // PyTorch counts the layer's padding, but not the part of windows beyond it.
      x = add_pad(sized, {layer.padding, layer.padding}, 0, x);
      padding = {{}, beyond};
      counts_padding = false;
    }
    return add_average(sized, layer.kernel_size, layer.stride.value(), padding, counts_padding, x);
  }

  std::string add(const SizedLayer& sized, const settings::AdaptiveAvgPool2dLayer& /*layer*/,
                  const std::string& x) {
    const auto& [in, out] = std::pair(sized.in, sized.out);
    if (out.height == 1 && out.width == 1) return add_node(sized, "GlobalAveragePool", {x});
    if (in.height % out.height != 0 || in.width % out.width != 0) {
      throw network::LayerError(
          sized.pointer,
          "ONNX cannot express adaptive_avg_pool2d from " + batch_text(in) + " to " +
              batch_text(out) +
              ", with windows of different sizes; choose an output_size that divides "
              "the input's, or export with --format python");
    }
    const ImageSize window{in.height / out.height, in.width / out.width};
    return add_average(sized, window, window, {}, /*counts_padding=*/false, x);
  }

  std::string add(const SizedLayer& sized, const settings::FlattenLayer& /*layer*/,
                  const std::string& x) {
    return add_node(sized, "Flatten", {x});
  }

  static std::string add(const SizedLayer& /*sized*/, const settings::DropoutLayer& /*layer*/,
                         const std::string& x) {
    return x;
  }

  /// Adds a sequential or repeat.
  template <class Layers>
  std::string add(const SizedLayer& sized, const Layers& /*layer*/, const std::string& x) {
    return add_all(sized.layers, x);
  }

  std::string add(const SizedLayer& sized, const settings::ResidualLayer& layer,
                  const std::string& x) {
    const std::string sum =
        add_node(sized, "Add", {add_all(sized.layers, x), add_all(sized.shortcut, x)});
    return layer.activation ? add(sized, settings::ActivationLayer{*layer.activation}, sum) : sum;
  }

  std::string add_average(const SizedLayer& sized, const ImageSize& kernel, const ImageSize& stride,
                          const SidePadding& padding, bool counts_padding, const std::string& x) {
    return add_node(sized, "AveragePool", {x},
                    {{"kernel_shape", sides(kernel)},
                     {"strides", sides(stride)},
                     {"pads", pads(padding)},
                     {"count_include_pad", std::int64_t{counts_padding}}});
  }

  std::string add_pad(const SizedLayer& sized, const SidePadding& padding, float value,
                      const std::string& x) {
    const auto& [begin, end] = padding;
    const Sizes sizes{0, 0, begin.height, begin.width, 0, 0, end.height, end.width};
    return add_node(sized, "Pad", {x, graph_.add_constant(sizes), graph_.add_constant(value)});
  }

  std::string add_node(const SizedLayer& sized, const std::string& operation,
                       std::vector<std::string> inputs,
                       std::vector<OnnxAttribute> attributes = {}) {
    return graph_.add_node(sized.path, operation, std::move(inputs), std::move(attributes));
  }

  /// Adds a tensor of a layer; returns its name in the state_dict.
  std::string add_weight(const SizedLayer& sized, const std::string& name, Sizes shape) {
    const std::string path = sized.path + "." + name;
    return graph_.add_tensor({path, std::move(shape), find_weight_(path)});
  }

  OnnxGraph& graph_;
  const FindWeight& find_weight_;
};

}  // namespace

std::string onnx_model(const network::Network& net, const FindWeight& find_weight,
                       const settings::NormalizeOptions& normalize) {
  const auto& [channels, height, width, classes] = net.images;
  if (net.parameters > kMaxParameters) {
    throw Error(ExitCode::kConfig,
                "the network has " + std::to_string(net.parameters) +
                    " parameters, but an ONNX file must be smaller than 2 GiB; export the weights "
                    "with --format safetensors, and the network with --format python");
  }
  OnnxGraph graph;
  graph.input = {"images", {channels, height, width}};
  graph.output = {"logits", {classes}};
  graph.description = input_text(net, normalize);
  LayerWriter(graph, find_weight).add_all(net.layers, graph.input.name);
  return graph.write();
}

}  // namespace mnist_train::interchange
