#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <numbers>
#include <protozero/pbf_writer.hpp>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/version.h"
#include "interchange/exports.h"

namespace mnist_train::interchange {

namespace {

using network::SizedLayer;
using settings::Activation;
using settings::ImageSize;
using settings::sides;
using Sizes = std::vector<std::int64_t>;

/// An attribute of an operator of operator set 17.
struct OnnxAttribute {
  std::string name;
  std::variant<std::int64_t, float, std::vector<std::int64_t>> value;
};

/// An operator with the names of its input and output tensors.
struct OnnxNode {
  std::string operation;
  std::string name;
  std::vector<std::string> inputs;
  std::string output;
  std::vector<OnnxAttribute> attributes;
};

/// A tensor stored in the file. A span must stay valid until the file is written.
struct OnnxTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::variant<std::span<const float>, std::vector<float>, std::vector<std::int64_t>> values;
};

/// A float32 input or output of the graph, for any number of images.
struct OnnxValue {
  std::string name;
  std::vector<std::int64_t> shape;  // of one image
};

/// A graph of operators (https://github.com/onnx/onnx/blob/main/docs/IR.md).
class OnnxGraph {
 public:
  OnnxValue input;
  OnnxValue output;
  std::string description;

  /// Adds an operator after those of its inputs. Returns the name of its output, which contains the
  /// path of its layer.
  std::string add_node(const std::string& path, const std::string& operation,
                       std::vector<std::string> inputs, std::vector<OnnxAttribute> attributes = {});

  /// Adds a named tensor; returns the name.
  std::string add_tensor(OnnxTensor tensor);

  /// Adds a tensor without a name; returns a generated one.
  std::string add_constant(std::vector<std::int64_t> shape, std::vector<float> values);
  std::string add_constant(std::vector<std::int64_t> values);
  std::string add_constant(double value) { return add_constant({}, {static_cast<float>(value)}); }

  /// Makes the output of the last operator that of the graph, and returns the bytes of an ONNX
  /// file. Requires at least one operator.
  std::string write();

 private:
  std::string constant_name() { return "/constant_" + std::to_string(constants_++); }

  std::vector<OnnxNode> nodes_;
  std::vector<OnnxTensor> tensors_;
  std::map<std::string, int> names_;  // number of nodes with each name
  int constants_ = 0;
};

using protozero::pbf_writer;
using FieldNumber = protozero::pbf_tag_type;

// The messages are those of onnx/onnx.proto, written field by field, since libprotobuf must not be
// linked beside LibTorch, which carries its own. Their field numbers:
enum ModelField : FieldNumber {
  kIrVersion = 1,
  kProducerName = 2,
  kProducerVersion = 3,
  kModelDescription = 6,
  kGraph = 7,
  kOperatorSet = 8
};
enum OperatorSetField : FieldNumber { kOperatorSetVersion = 2 };
enum GraphField : FieldNumber {
  kNode = 1,
  kGraphName = 2,
  kInitializer = 5,
  kGraphInput = 11,
  kGraphOutput = 12
};
enum NodeField : FieldNumber {
  kNodeInput = 1,
  kNodeOutput = 2,
  kNodeName = 3,
  kOperation = 4,
  kAttribute = 5
};
enum AttributeField : FieldNumber {
  kAttributeName = 1,
  kFloat = 2,
  kInteger = 3,
  kIntegers = 8,
  kAttributeType = 20
};
enum OnnxTensorField : FieldNumber { kDimension = 1, kDataType = 2, kTensorName = 8, kRawData = 9 };
enum OnnxValueField : FieldNumber { kValueName = 1, kValueType = 2 };
enum TypeField : FieldNumber { kTensorType = 1 };
enum TensorTypeField : FieldNumber { kElementType = 1, kShape = 2 };
enum ShapeField : FieldNumber { kShapeDimension = 1 };
enum DimensionField : FieldNumber { kSize = 1, kSizeName = 2 };

constexpr std::int32_t kFloatAttribute = 1;  // of AttributeProto.AttributeType
constexpr std::int32_t kIntegerAttribute = 2;
constexpr std::int32_t kIntegersAttribute = 7;
constexpr std::int32_t kFloat32 = 1;  // of TensorProto.DataType
constexpr std::int32_t kInt64 = 7;
constexpr std::int64_t kOperatorSetOfFile = 17;
constexpr std::int64_t kFileVersion = 8;  // the first that has these operators

void write_value(pbf_writer& attribute, std::int64_t value) {
  attribute.add_int64(kInteger, value);
  attribute.add_enum(kAttributeType, kIntegerAttribute);
}

void write_value(pbf_writer& attribute, float value) {
  attribute.add_float(kFloat, value);
  attribute.add_enum(kAttributeType, kFloatAttribute);
}

void write_value(pbf_writer& attribute, const std::vector<std::int64_t>& values) {
  for (const std::int64_t value : values) attribute.add_int64(kIntegers, value);
  attribute.add_enum(kAttributeType, kIntegersAttribute);
}

void write_node(pbf_writer& graph, const OnnxNode& content) {
  pbf_writer node(graph, kNode);
  for (const std::string& input : content.inputs) node.add_string(kNodeInput, input);
  node.add_string(kNodeOutput, content.output);
  node.add_string(kNodeName, content.name);
  node.add_string(kOperation, content.operation);
  for (const OnnxAttribute& each : content.attributes) {
    pbf_writer attribute(node, kAttribute);
    attribute.add_string(kAttributeName, each.name);
    std::visit([&](const auto& value) { write_value(attribute, value); }, each.value);
  }
}

void write_tensor(pbf_writer& graph, const OnnxTensor& content) {
  static_assert(std::endian::native == std::endian::little);
  pbf_writer tensor(graph, kInitializer);
  for (const std::int64_t size : content.shape) tensor.add_int64(kDimension, size);
  const bool integers = std::holds_alternative<std::vector<std::int64_t>>(content.values);
  tensor.add_enum(kDataType, integers ? kInt64 : kFloat32);
  tensor.add_string(kTensorName, content.name);
  std::visit(
      [&](const auto& values) {
        const auto bytes = std::as_bytes(std::span(values));
        tensor.add_bytes(kRawData, reinterpret_cast<const char*>(bytes.data()), bytes.size());
      },
      content.values);
}

void write_graph_value(pbf_writer& graph, FieldNumber field, const OnnxValue& content) {
  pbf_writer value(graph, field);
  value.add_string(kValueName, content.name);
  pbf_writer type(value, kValueType);
  pbf_writer tensor(type, kTensorType);
  tensor.add_enum(kElementType, kFloat32);
  pbf_writer shape(tensor, kShape);
  pbf_writer(shape, kShapeDimension).add_string(kSizeName, "N");
  for (const std::int64_t size : content.shape) {
    pbf_writer(shape, kShapeDimension).add_int64(kSize, size);
  }
}

std::string OnnxGraph::add_node(const std::string& path, const std::string& operation,
                                std::vector<std::string> inputs,
                                std::vector<OnnxAttribute> attributes) {
  std::string name = "/" + path + "/" + operation;
  if (const int others = names_[name]++; others > 0) name += "_" + std::to_string(others);
  nodes_.push_back({operation, name, std::move(inputs), name, std::move(attributes)});
  return name;
}

std::string OnnxGraph::add_tensor(OnnxTensor tensor) {
  return tensors_.emplace_back(std::move(tensor)).name;
}

std::string OnnxGraph::add_constant(std::vector<std::int64_t> shape, std::vector<float> values) {
  return add_tensor({constant_name(), std::move(shape), std::move(values)});
}

std::string OnnxGraph::add_constant(std::vector<std::int64_t> values) {
  const auto size = static_cast<std::int64_t>(values.size());
  return add_tensor({constant_name(), {size}, std::move(values)});
}

std::string OnnxGraph::write() {
  nodes_.back().output = output.name;
  std::string bytes;
  pbf_writer model(bytes);
  model.add_int64(kIrVersion, kFileVersion);
  model.add_string(kProducerName, "mnist-train");
  model.add_string(kProducerVersion, build_info().version);
  model.add_string(kModelDescription, description);
  {
    pbf_writer graph(model, kGraph);
    for (const OnnxNode& node : nodes_) write_node(graph, node);
    graph.add_string(kGraphName, "network");
    for (const OnnxTensor& tensor : tensors_) write_tensor(graph, tensor);
    write_graph_value(graph, kGraphInput, input);
    write_graph_value(graph, kGraphOutput, output);
  }
  pbf_writer(model, kOperatorSet).add_int64(kOperatorSetVersion, kOperatorSetOfFile);
  return bytes;
}

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
