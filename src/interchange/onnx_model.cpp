#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/print.h"
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

/// For each channel, `value * scale + shift`.
struct ScaleAndShift {
  std::vector<double> scale;
  std::vector<double> shift;
};

std::vector<float> rounded(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// Appends the layers in the order of computation, with those of lists in lists, without dropout.
void append_in_order(const std::vector<SizedLayer>& layers,
                     std::vector<const SizedLayer*>& in_order) {
  for (const SizedLayer& sized : layers) {
    if (std::holds_alternative<settings::SequentialLayer>(sized.kind) ||
        std::holds_alternative<settings::RepeatLayer>(sized.kind)) {
      append_in_order(sized.layers, in_order);
    } else if (!std::holds_alternative<settings::DropoutLayer>(sized.kind)) {
      in_order.push_back(&sized);
    }
  }
}

/// Adds layers to a graph. Each function takes the name of the input tensor and returns the name of
/// the output tensor.
class LayerWriter {
 public:
  LayerWriter(OnnxGraph& graph, const FindWeight& find_weight)
      : graph_(graph), find_weight_(find_weight) {}

  std::string add_all(const std::vector<SizedLayer>& layers, std::string x) {
    std::vector<const SizedLayer*> in_order;
    append_in_order(layers, in_order);
    const auto is_norm = [](const SizedLayer* sized) {
      return std::holds_alternative<settings::BatchNormLayer>(sized->kind);
    };
    for (auto next = in_order.begin(); next != in_order.end();) {
      const SizedLayer& sized = **next++;
      norms_.clear();
      if (std::holds_alternative<settings::Conv2dLayer>(sized.kind) ||
          std::holds_alternative<settings::LinearLayer>(sized.kind)) {
        while (next != in_order.end() && is_norm(*next)) norms_.push_back(*next++);
      }
      x = std::visit([&](const auto& layer) { return add(sized, layer, x); }, sized.kind);
    }
    return x;
  }

  /// `path` names the operators; x has the given number of dimensions.
  std::string add_scale_and_shift(const std::string& path, const ScaleAndShift& by,
                                  std::size_t dimensions, const std::string& x) {
    Sizes shape(dimensions, 1);
    shape[1] = static_cast<std::int64_t>(by.scale.size());
    const std::string scaled =
        graph_.add_node(path, "Mul", {x, graph_.add_constant(shape, rounded(by.scale))});
    return graph_.add_node(path, "Add", {scaled, graph_.add_constant(shape, rounded(by.shift))});
  }

 private:
  std::string add(const SizedLayer& sized, const settings::Conv2dLayer& layer,
                  const std::string& x) {
    const ImageSize& kernel = layer.kernel_size;
    const std::int64_t out = layer.out_channels.value();
    const Sizes shape{out, sized.in.channels / layer.groups, kernel.height, kernel.width};
    const SidePadding padding = layer.padding ? SidePadding{*layer.padding, *layer.padding}
                                              : halves({layer.dilation.height * (kernel.height - 1),
                                                        layer.dilation.width * (kernel.width - 1)});
    return add_node(sized, "Conv", weighted_inputs(sized, shape, layer.bias, x),
                    {{"kernel_shape", sides(kernel)},
                     {"strides", sides(layer.stride)},
                     {"pads", pads(padding)},
                     {"dilations", sides(layer.dilation)},
                     {"group", layer.groups}});
  }

  std::string add(const SizedLayer& sized, const settings::LinearLayer& layer,
                  const std::string& x) {
    const std::int64_t out = layer.out_features.value();
    return add_node(sized, "Gemm", weighted_inputs(sized, {out, sized.in.channels}, layer.bias, x),
                    {{"transB", std::int64_t{1}}});
  }

  /// One that follows no convolution or linear layer.
  std::string add(const SizedLayer& sized, const settings::BatchNormLayer& /*layer*/,
                  const std::string& x) {
    return add_scale_and_shift(sized.path, affine_of(sized), sized.in.is_image ? 4 : 2, x);
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
    if (sized.in.is_image) shape.insert(shape.end(), {sized.in.height, sized.in.width});
    const std::string y = add_node(sized, "Reshape", {normal, graph_.add_constant(shape)});
    const auto numbers = [&](const char* name) {
      const auto weight = find_weight_(sized.path + "." + name);
      return std::vector<double>(weight.begin(), weight.end());
    };
    return add_scale_and_shift(sized.path, {numbers("weight"), numbers("bias")}, shape.size(), y);
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
      case Activation::kRelu6:
        return add_node(sized, "Clip", {x, graph_.add_constant(0.0), graph_.add_constant(6.0)});
      case Activation::kHardswish:
        return add_node(sized, "HardSwish", {x});
      case Activation::kHardsigmoid:
        return add_node(sized, "HardSigmoid", {x}, {{"alpha", 1.0F / 6}});
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
    const ImageSize beyond{std::max<std::int64_t>(padding.end.height - layer.padding.height, 0),
                           std::max<std::int64_t>(padding.end.width - layer.padding.width, 0)};
    if (layer.count_include_pad && padding != SidePadding{}) {
      // PyTorch counts the layer's padding, but not the part of windows beyond it. OpenCV up to
      // 4.12 counts none that is the operator's.
      x = add_pad(sized, {layer.padding, layer.padding}, 0, x);
      padding = {{}, beyond};
    }
    return add_average(sized, layer.kernel_size, layer.stride.value(), padding, x);
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
    return add_average(sized, window, window, {}, x);
  }

  std::string add(const SizedLayer& sized, const settings::ZeroPad2dLayer& layer,
                  const std::string& x) {
    const auto& [left, right, top, bottom] = layer.padding;
    return add_pad(sized, {{top, left}, {bottom, right}}, 0, x);
  }

  std::string add(const SizedLayer& sized, const settings::GateLayer& /*layer*/,
                  const std::string& x) {
    return add_node(sized, "Mul", {x, add_all(sized.layers, x)});
  }

  std::string add(const SizedLayer& sized, const settings::FlattenLayer& /*layer*/,
                  const std::string& x) {
    return add_node(sized, "Flatten", {x});
  }

  /// Never called: `append_in_order` leaves none of these.
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
                          const SidePadding& padding, const std::string& x) {
    return add_node(
        sized, "AveragePool", {x},
        {{"kernel_shape", sides(kernel)}, {"strides", sides(stride)}, {"pads", pads(padding)}});
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

  /// Returns the scale and shift of each channel by a batch norm in evaluation mode.
  ScaleAndShift affine_of(const SizedLayer& sized) {
    const auto find = [&](const char* name) { return find_weight_(sized.path + "." + name); };
    const auto [weight, bias] = std::pair(find("weight"), find("bias"));
    const auto [mean, variance] = std::pair(find("running_mean"), find("running_var"));
    const double eps = std::get<settings::BatchNormLayer>(sized.kind).eps;
    ScaleAndShift affine;
    for (std::size_t i = 0; i < weight.size(); ++i) {
      affine.scale.push_back(weight[i] / std::sqrt(variance[i] + eps));
      affine.shift.push_back(bias[i] - mean[i] * affine.scale[i]);
    }
    return affine;
  }

  /// Returns x, weight and bias, if any, of a convolution or linear layer with `norms_` folded in.
  std::vector<std::string> weighted_inputs(const SizedLayer& sized, const Sizes& shape,
                                           bool has_bias, const std::string& x) {
    const Sizes channels{shape[0]};
    std::vector<std::string> inputs{x};
    if (norms_.empty()) {
      inputs.push_back(add_weight(sized, "weight", shape));
      if (has_bias) inputs.push_back(add_weight(sized, "bias", channels));
      return inputs;
    }
    const auto weight = find_weight_(sized.path + ".weight");
    std::vector<double> folded(weight.begin(), weight.end());
    std::vector<double> shift(static_cast<std::size_t>(shape[0]));
    if (has_bias) std::ranges::copy(find_weight_(sized.path + ".bias"), shift.begin());
    const std::size_t row = folded.size() / shift.size();
    for (const SizedLayer* norm : norms_) {
      const ScaleAndShift affine = affine_of(*norm);
      for (std::size_t i = 0; i < folded.size(); ++i) folded[i] *= affine.scale[i / row];
      for (std::size_t i = 0; i < shift.size(); ++i) {
        shift[i] = shift[i] * affine.scale[i] + affine.shift[i];
      }
    }
    inputs.push_back(graph_.add_tensor({sized.path + ".weight", shape, rounded(folded)}));
    inputs.push_back(graph_.add_tensor({sized.path + ".bias", channels, rounded(shift)}));
    return inputs;
  }

  /// Adds a tensor of a layer; returns its name in the state_dict.
  std::string add_weight(const SizedLayer& sized, const std::string& name, Sizes shape) {
    const std::string path = sized.path + "." + name;
    return graph_.add_tensor({path, std::move(shape), find_weight_(path)});
  }

  OnnxGraph& graph_;
  const FindWeight& find_weight_;
  std::vector<const SizedLayer*> norms_;  // those directly after the layer that is added
};

std::vector<double> per_channel(const settings::PerChannel& value, std::int64_t channels) {
  if (const auto* list = std::get_if<std::vector<double>>(&value)) return *list;
  return std::vector<double>(static_cast<std::size_t>(channels), std::get<double>(value));
}

/// Returns the normalisation of bytes.
ScaleAndShift affine_of(const settings::NormalizeOptions& normalize, std::int64_t channels) {
  ScaleAndShift affine;
  const std::vector<double> mean = per_channel(normalize.mean, channels);
  const std::vector<double> std = per_channel(normalize.std, channels);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    affine.scale.push_back(1 / (255 * std[i]));
    affine.shift.push_back(-mean[i] / std[i]);
  }
  return affine;
}

std::string bytes_text(const network::ImageShape& images) {
  return fmt::format("Images [N,{},{},{}], uint8, give probabilities [N,{}].", images.channels,
                     images.height, images.width, images.classes);
}

std::vector<std::pair<std::string, std::string>> metadata_of(const network::Network& net,
                                                             const Pictures& pictures) {
  const auto& [channels, height, width, classes] = net.images;
  const ImageSize size{height, width};
  std::vector<std::pair<std::string, std::string>> entries{
      {"classes", json_text(nlohmann::json(pictures.class_names))},
      {"size", json_text(nlohmann::json(sides(size)))},
      {"channels", std::to_string(channels)},
      {"fit", enum_name(settings::kFitNames, pictures.fit)},
      {"background", json_text(nlohmann::json(pictures.background))},
      {"mean", json_text(nlohmann::json(per_channel(pictures.normalize.mean, channels)))},
      {"std", json_text(nlohmann::json(per_channel(pictures.normalize.std, channels)))}};
  if (pictures.size != size) {
    entries.emplace_back("fit_size", json_text(nlohmann::json(sides(pictures.size))));
  }
  return entries;
}

}  // namespace

std::string onnx_model(const network::Network& net, const FindWeight& find_weight,
                       const Pictures& pictures, bool takes_bytes) {
  const auto& [channels, height, width, classes] = net.images;
  if (net.parameters > kMaxParameters) {
    throw Error(ExitCode::kConfig,
                "the network has " + std::to_string(net.parameters) +
                    " parameters, but an ONNX file must be smaller than 2 GiB; export the weights "
                    "with --format safetensors, and the network with --format python");
  }
  OnnxGraph graph;
  graph.input = {"images", {channels, height, width}, takes_bytes};
  graph.output = {takes_bytes ? "probabilities" : "logits", {classes}};
  graph.description = takes_bytes ? bytes_text(net.images) : input_text(net, pictures.normalize);
  graph.metadata = metadata_of(net, pictures);
  LayerWriter writer(graph, find_weight);
  std::string x = graph.input.name;
  if (takes_bytes) {
    x = graph.add_node("input", "Cast", {x}, {{"to", std::int64_t{kFloat32}}});
    x = writer.add_scale_and_shift("input", affine_of(pictures.normalize, channels), 4, x);
  }
  x = writer.add_all(net.layers, x);
  if (takes_bytes) graph.add_node("output", "Softmax", {x}, {{"axis", std::int64_t{1}}});
  return graph.write();
}

}  // namespace mnist_train::interchange
