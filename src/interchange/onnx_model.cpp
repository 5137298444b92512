#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <protozero/pbf_writer.hpp>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/json.h"
#include "base/print.h"
#include "base/version.h"
#include "interchange/exports.h"

namespace mnist_train::interchange {

namespace {

using network::SizedLayer;
using protozero::pbf_writer;
using settings::Activation;
using settings::ImageSize;
using settings::sides;
using Sizes = std::vector<std::int64_t>;
using TensorName = std::string;

constexpr std::int32_t kFloat32 = 1;  // in TensorProto.DataType

/// Protobuf messages must be below 2 GiB; 16 MiB are reserved for data other than parameters.
constexpr std::int64_t kMaxParameters = ((std::int64_t{2} << 30) - (std::int64_t{16} << 20)) / 4;

/// Name and value of an operator attribute in operator set 17.
using OnnxAttribute = std::pair<std::string, std::variant<std::int64_t, float, Sizes>>;

/// An operator, whose output tensor has the same name unless it is the graph's output.
struct OnnxNode {
  std::string operation;
  std::string name;
  std::vector<std::string> inputs;
  std::vector<OnnxAttribute> attributes;
};

/// An input or output of the graph, for any batch size.
struct OnnxValue {
  std::string name;
  Sizes shape;  // of one image
  std::int32_t type = kFloat32;
};

/// A graph of operators (https://github.com/onnx/onnx/blob/main/docs/IR.md). The messages of
/// onnx/onnx.proto are written field by field, each with its number and name, because libprotobuf
/// must not be linked together with LibTorch, which contains its own copy. Tensors, which make up
/// nearly all of a file, are written as soon as they are added.
class OnnxGraph {
 public:
  OnnxGraph() = default;
  OnnxGraph(const OnnxGraph&) = delete;  // the writers point to each other
  OnnxGraph& operator=(const OnnxGraph&) = delete;

  OnnxValue input;
  OnnxValue output;
  std::string description;
  std::vector<std::pair<std::string, std::string>> metadata;

  /// Adds an operator, which must come after the operators that compute its inputs. Returns the
  /// name of its output, which contains the layer's path.
  std::string add_node(const std::string& path, const std::string& operation,
                       std::vector<std::string> inputs,
                       std::vector<OnnxAttribute> attributes = {}) {
    std::string name = "/" + path + "/" + operation;
    if (const int others = names_[name]++; others > 0) name += "_" + std::to_string(others);
    nodes_.push_back({operation, name, std::move(inputs), std::move(attributes)});
    return name;
  }

  /// Adds a named float32 or int64 tensor; returns the name.
  template <class Number>
  std::string add_tensor(const std::string& name, const Sizes& shape,
                         const std::vector<Number>& values) {
    static_assert(std::endian::native == std::endian::little);
    pbf_writer tensor(*graph_, /*initializer*/ 5);
    for (const std::int64_t size : shape) tensor.add_int64(/*dims*/ 1, size);
    tensor.add_enum(/*data_type*/ 2, std::is_same_v<Number, float> ? kFloat32 : /*INT64*/ 7);
    tensor.add_string(/*name*/ 8, name);
    tensor.add_bytes(/*raw_data*/ 9, reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(Number));
    return name;
  }

  /// Adds an unnamed tensor; returns a generated name.
  template <class Number>
  std::string add_constant(const Sizes& shape, const std::vector<Number>& values) {
    return add_tensor("/constant_" + std::to_string(constants_++), shape, values);
  }
  std::string add_constant(const Sizes& values) {
    return add_constant({std::ssize(values)}, values);
  }
  std::string add_constant(double value) {
    return add_constant({}, std::vector<float>{static_cast<float>(value)});
  }

  /// Makes the last operator's output the graph's output, and returns the bytes of an ONNX file.
  /// Requires at least one operator.
  std::string write() {
    for (const OnnxNode& node : nodes_) {
      write_node(node, &node == &nodes_.back() ? output.name : node.name);
    }
    graph_->add_string(/*name*/ 2, "network");
    write_value(pbf_writer(*graph_, /*input*/ 11), input);
    write_value(pbf_writer(*graph_, /*output*/ 12), output);
    graph_.reset();
    model_.add_int64(/*ir_version*/ 1, 8);  // the IR version of operator set 17
    model_.add_string(/*producer_name*/ 2, "mnist-train");
    model_.add_string(/*producer_version*/ 3, build_info().version);
    model_.add_string(/*doc_string*/ 6, description);
    pbf_writer(model_, /*opset_import*/ 8).add_int64(/*version*/ 2, 17);
    for (const auto& [key, value] : metadata) {
      pbf_writer entry(model_, /*metadata_props*/ 14);
      entry.add_string(/*key*/ 1, key);
      entry.add_string(/*value*/ 2, value);
    }
    return std::move(bytes_);
  }

 private:
  void write_node(const OnnxNode& content, const std::string& result) {
    pbf_writer node(*graph_, /*node*/ 1);
    for (const std::string& name : content.inputs) node.add_string(/*input*/ 1, name);
    node.add_string(/*output*/ 2, result);
    node.add_string(/*name*/ 3, content.name);
    node.add_string(/*op_type*/ 4, content.operation);
    for (const auto& [name, value] : content.attributes) {
      pbf_writer attribute(node, /*attribute*/ 5);
      attribute.add_string(/*name*/ 1, name);
      if (const auto* number = std::get_if<float>(&value)) {
        attribute.add_float(/*f*/ 2, *number);
        attribute.add_enum(/*type*/ 20, /*FLOAT*/ 1);
      } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
        attribute.add_int64(/*i*/ 3, *integer);
        attribute.add_enum(/*type*/ 20, /*INT*/ 2);
      } else {
        for (const auto each : std::get<Sizes>(value)) attribute.add_int64(/*ints*/ 8, each);
        attribute.add_enum(/*type*/ 20, /*INTS*/ 7);
      }
    }
  }

  static void write_value(pbf_writer value, const OnnxValue& content) {
    value.add_string(/*name*/ 1, content.name);
    pbf_writer type(value, /*type*/ 2);
    pbf_writer tensor(type, /*tensor_type*/ 1);
    tensor.add_enum(/*elem_type*/ 1, content.type);
    pbf_writer shape(tensor, /*shape*/ 2);
    pbf_writer(shape, /*dim*/ 1).add_string(/*dim_param*/ 2, "N");
    for (const std::int64_t size : content.shape) {
      pbf_writer(shape, /*dim*/ 1).add_int64(/*dim_value*/ 1, size);
    }
  }

  std::string bytes_;
  pbf_writer model_{bytes_};
  std::optional<pbf_writer> graph_{std::in_place, model_, /*graph*/ 7};  // reset when complete
  std::vector<OnnxNode> nodes_;
  std::map<std::string, int> names_;  // number of nodes per name
  int constants_ = 0;
};

/// Padding of an image: top, left, bottom, right.
Sizes both_ends(const ImageSize& padding) {
  return {padding.height, padding.width, padding.height, padding.width};
}

/// Returns the padding that covers all windows of a pooling layer; in ceil mode, the last ones may
/// extend beyond the layer's own padding.
template <class Pool>
Sizes padding_of(const SizedLayer& sized, const Pool& layer, const ImageSize& dilation = {1, 1}) {
  const auto& [height, width] = layer.padding;
  if (!layer.ceil_mode) return both_ends(layer.padding);
  const ImageSize& kernel = layer.kernel_size;
  const auto overhang = [](std::int64_t side, std::int64_t last_begin, std::int64_t reach) {
    return std::max<std::int64_t>(last_begin + reach - side, 0);
  };
  return {height, width,
          overhang(sized.in.height, (sized.out.height - 1) * layer.stride->height - height,
                   dilation.height * (kernel.height - 1) + 1),
          overhang(sized.in.width, (sized.out.width - 1) * layer.stride->width - width,
                   dilation.width * (kernel.width - 1) + 1)};
}

/// Splits the total padding between both ends. Like PyTorch, puts the larger half at the end.
Sizes halves(std::int64_t height, std::int64_t width) {
  return {height / 2, width / 2, height - height / 2, width - width / 2};
}

/// Per channel: `value * scale + shift`.
struct ScaleAndShift {
  std::vector<double> scale;
  std::vector<double> shift;
};

std::vector<float> rounded(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// Appends the layers in order of computation; flattens sequentials and repeats, omits dropout.
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

/// Adds layers to a graph. Functions map the name of the input tensor to that of the output.
class LayerWriter {
 public:
  LayerWriter(OnnxGraph& graph, const FindWeight& find_weight)
      : graph_(graph), find_weight_(find_weight) {}

  TensorName add_all(const std::vector<SizedLayer>& layers, TensorName x) {
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

  /// `path`: prefix of the operators' names. x has `dimensions` dimensions.
  TensorName add_scale_and_shift(const std::string& path, const ScaleAndShift& affine,
                                 std::size_t dimensions, const TensorName& x) {
    Sizes shape(dimensions, 1);
    shape[1] = static_cast<std::int64_t>(affine.scale.size());
    const TensorName scaled =
        graph_.add_node(path, "Mul", {x, graph_.add_constant(shape, rounded(affine.scale))});
    return graph_.add_node(path, "Add",
                           {scaled, graph_.add_constant(shape, rounded(affine.shift))});
  }

 private:
  TensorName add(const SizedLayer& sized, const settings::Conv2dLayer& layer, const TensorName& x) {
    const ImageSize& kernel = layer.kernel_size;
    const Sizes shape{layer.out_channels.value(), sized.in.channels / layer.groups, kernel.height,
                      kernel.width};
    const Sizes pads = layer.padding ? both_ends(*layer.padding)
                                     : halves(layer.dilation.height * (kernel.height - 1),
                                              layer.dilation.width * (kernel.width - 1));
    return add_node(sized, "Conv", weighted_inputs(sized, shape, layer.bias, x),
                    {{"kernel_shape", sides(kernel)},
                     {"strides", sides(layer.stride)},
                     {"pads", pads},
                     {"dilations", sides(layer.dilation)},
                     {"group", layer.groups}});
  }

  TensorName add(const SizedLayer& sized, const settings::LinearLayer& layer, const TensorName& x) {
    const Sizes shape{layer.out_features.value(), sized.in.channels};
    return add_node(sized, "Gemm", weighted_inputs(sized, shape, layer.bias, x),
                    {{"transB", std::int64_t{1}}});
  }

  /// Adds a batch norm that does not follow a convolution or linear layer.
  TensorName add(const SizedLayer& sized, const settings::BatchNormLayer&, const TensorName& x) {
    return add_scale_and_shift(sized.path, affine_of(sized), sized.in.is_image ? 4 : 2, x);
  }

  /// Normalises each group as one channel, because operator set 17 has no group norm.
  TensorName add(const SizedLayer& sized, const settings::GroupNormLayer& layer,
                 const TensorName& x) {
    const auto groups = static_cast<std::size_t>(layer.num_groups);
    const TensorName grouped =
        add_node(sized, "Reshape", {x, graph_.add_constant({0, layer.num_groups, -1})});
    const TensorName normal =
        add_node(sized, "InstanceNormalization",
                 {grouped, graph_.add_constant({layer.num_groups}, std::vector<float>(groups, 1)),
                  graph_.add_constant({layer.num_groups}, std::vector<float>(groups, 0))},
                 {{"epsilon", static_cast<float>(layer.eps)}});
    Sizes shape{0, sized.in.channels};
    if (sized.in.is_image) shape.insert(shape.end(), {sized.in.height, sized.in.width});
    const TensorName y = add_node(sized, "Reshape", {normal, graph_.add_constant(shape)});
    const ScaleAndShift affine{numbers(sized, "weight"), numbers(sized, "bias")};
    return add_scale_and_shift(sized.path, affine, shape.size(), y);
  }

  TensorName add(const SizedLayer& sized, const settings::ActivationLayer& layer,
                 const TensorName& x) {
    switch (layer.function) {
      case Activation::kSilu:
        return add_node(sized, "Mul", {x, add_node(sized, "Sigmoid", {x})});
      case Activation::kGelu:
        return add_gelu(sized, layer.tanh_approximates, x);
      case Activation::kLeakyRelu:
        return add_node(sized, "LeakyRelu", {x},
                        {{"alpha", static_cast<float>(layer.negative_slope)}});
      case Activation::kRelu6:
        return add_node(sized, "Clip", {x, graph_.add_constant(0.0), graph_.add_constant(6.0)});
      case Activation::kHardsigmoid:
        return add_node(sized, "HardSigmoid", {x}, {{"alpha", 1.0F / 6}});
      case Activation::kHardswish:
        return add_node(sized, "HardSwish", {x});
      case Activation::kSigmoid:
        return add_node(sized, "Sigmoid", {x});
      case Activation::kTanh:
        return add_node(sized, "Tanh", {x});
      case Activation::kRelu:
        break;
    }
    return add_node(sized, "Relu", {x});
  }

  /// Adds x/2 * (1 + erf(x/sqrt(2))), or with tanh(sqrt(2/pi) * (x + 0.044715 x^3)) instead of erf.
  TensorName add_gelu(const SizedLayer& sized, bool tanh_approximates, const TensorName& x) {
    const auto op = [&](const char* operation, std::vector<TensorName> inputs) {
      return add_node(sized, operation, std::move(inputs));
    };
    TensorName step;
    if (tanh_approximates) {
      const TensorName cube = op("Mul", {op("Mul", {x, x}), x});
      const TensorName sum = op("Add", {x, op("Mul", {cube, graph_.add_constant(0.044715)})});
      const double factor = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
      step = op("Tanh", {op("Mul", {sum, graph_.add_constant(factor)})});
    } else {
      step = op("Erf", {op("Mul", {x, graph_.add_constant(1 / std::numbers::sqrt2)})});
    }
    return op("Mul", {op("Mul", {x, graph_.add_constant(0.5)}),
                      op("Add", {step, graph_.add_constant(1.0)})});
  }

  TensorName add(const SizedLayer& sized, const settings::MaxPool2dLayer& layer, TensorName x) {
    Sizes pads = padding_of(sized, layer, layer.dilation);
    if (pads != both_ends(layer.padding)) {
      // An operator's padding must be smaller than its kernel, but dilated windows may need more.
      x = add_pad(sized, pads, -std::numeric_limits<float>::infinity(), x);
      pads = Sizes(4);
    }
    return add_pool(sized, "MaxPool", layer.kernel_size, *layer.stride, pads, x,
                    {{"dilations", sides(layer.dilation)}});
  }

  TensorName add(const SizedLayer& sized, const settings::AvgPool2dLayer& layer, TensorName x) {
    Sizes pads = padding_of(sized, layer);
    if (layer.count_include_pad && pads != Sizes(4)) {
      // PyTorch averages over the layer's padding, but not over the part of a window beyond it.
      // OpenCV up to 4.12 ignores an operator's own padding.
      x = add_pad(sized, both_ends(layer.padding), 0, x);
      pads = {0, 0, std::max<std::int64_t>(pads[2] - layer.padding.height, 0),
              std::max<std::int64_t>(pads[3] - layer.padding.width, 0)};
    }
    return add_pool(sized, "AveragePool", layer.kernel_size, *layer.stride, pads, x);
  }

  TensorName add(const SizedLayer& sized, const settings::AdaptiveAvgPool2dLayer&,
                 const TensorName& x) {
    const auto& [in, out] = std::pair(sized.in, sized.out);
    if (out.height == 1 && out.width == 1) return add_node(sized, "GlobalAveragePool", {x});
    if (in.height % out.height != 0 || in.width % out.width != 0) {
      throw network::LayerError(
          sized.pointer, "ONNX cannot express adaptive_avg_pool2d from " + batch_text(in) + " to " +
                             batch_text(out) +
                             ", with windows of different sizes; choose an output_size that "
                             "divides the input size, or export with --format python");
    }
    const ImageSize window{in.height / out.height, in.width / out.width};
    return add_pool(sized, "AveragePool", window, window, Sizes(4), x);
  }

  TensorName add(const SizedLayer& sized, const settings::ZeroPad2dLayer& layer,
                 const TensorName& x) {
    const auto& [left, right, top, bottom] = layer.padding;
    return add_pad(sized, {top, left, bottom, right}, 0, x);
  }

  TensorName add(const SizedLayer& sized, const settings::GateLayer&, const TensorName& x) {
    return add_node(sized, "Mul", {x, add_all(sized.layers, x)});
  }

  TensorName add(const SizedLayer& sized, const settings::FlattenLayer&, const TensorName& x) {
    return add_node(sized, "Flatten", {x});
  }

  /// Never called: `append_in_order` flattens or omits all remaining kinds of layers.
  template <class Layers>
  TensorName add(const SizedLayer& sized, const Layers&, const TensorName& x) {
    return add_all(sized.layers, x);
  }

  TensorName add(const SizedLayer& sized, const settings::ResidualLayer& layer,
                 const TensorName& x) {
    const TensorName sum =
        add_node(sized, "Add", {add_all(sized.layers, x), add_all(sized.shortcut, x)});
    return layer.activation ? add(sized, settings::ActivationLayer{*layer.activation}, sum) : sum;
  }

  TensorName add_pool(const SizedLayer& sized, const char* operation, const ImageSize& kernel,
                      const ImageSize& stride, const Sizes& pads, const TensorName& x,
                      const std::vector<OnnxAttribute>& more = {}) {
    std::vector<OnnxAttribute> attributes{
        {"kernel_shape", sides(kernel)}, {"strides", sides(stride)}, {"pads", pads}};
    attributes.insert(attributes.end(), more.begin(), more.end());
    return add_node(sized, operation, {x}, std::move(attributes));
  }

  TensorName add_pad(const SizedLayer& sized, const Sizes& pads, float value, const TensorName& x) {
    const auto sizes = graph_.add_constant({0, 0, pads[0], pads[1], 0, 0, pads[2], pads[3]});
    return add_node(sized, "Pad", {x, sizes, graph_.add_constant(value)});
  }

  TensorName add_node(const SizedLayer& sized, const std::string& operation,
                      std::vector<TensorName> inputs, std::vector<OnnxAttribute> attributes = {}) {
    return graph_.add_node(sized.path, operation, std::move(inputs), std::move(attributes));
  }

  std::vector<double> numbers(const SizedLayer& sized, const char* tensor) {
    const auto numbers = find_weight_(sized.path + "." + tensor);
    return {numbers.begin(), numbers.end()};
  }

  /// Returns the per-channel scale and shift of a batch norm in evaluation mode.
  ScaleAndShift affine_of(const SizedLayer& sized) {
    ScaleAndShift affine{numbers(sized, "weight"), numbers(sized, "bias")};
    const std::vector<double> mean = numbers(sized, "running_mean");
    const std::vector<double> variance = numbers(sized, "running_var");
    const double eps = std::get<settings::BatchNormLayer>(sized.kind).eps;
    for (std::size_t i = 0; i < mean.size(); ++i) {
      affine.scale[i] /= std::sqrt(variance[i] + eps);
      affine.shift[i] -= mean[i] * affine.scale[i];
    }
    return affine;
  }

  /// Returns x, weight and bias (if any) of a convolution or linear layer with `norms_` folded in.
  std::vector<TensorName> weighted_inputs(const SizedLayer& sized, const Sizes& shape,
                                          bool has_bias, const TensorName& x) {
    std::vector<double> weight = numbers(sized, "weight");
    std::vector<double> bias(static_cast<std::size_t>(shape[0]));
    if (has_bias) bias = numbers(sized, "bias");
    const std::size_t row = weight.size() / bias.size();
    for (const SizedLayer* norm : norms_) {
      const ScaleAndShift affine = affine_of(*norm);
      for (std::size_t i = 0; i < weight.size(); ++i) weight[i] *= affine.scale[i / row];
      for (std::size_t i = 0; i < bias.size(); ++i) {
        bias[i] = bias[i] * affine.scale[i] + affine.shift[i];
      }
    }
    std::vector<TensorName> inputs{
        x, graph_.add_tensor(sized.path + ".weight", shape, rounded(weight))};
    if (has_bias || !norms_.empty()) {
      inputs.push_back(graph_.add_tensor(sized.path + ".bias", {shape[0]}, rounded(bias)));
    }
    return inputs;
  }

  OnnxGraph& graph_;
  const FindWeight& find_weight_;
  std::vector<const SizedLayer*> norms_;  // directly after the layer being added
};

std::vector<double> per_channel(const settings::PerChannel& value, std::int64_t channels) {
  if (const auto* list = std::get_if<std::vector<double>>(&value)) return *list;
  return std::vector<double>(static_cast<std::size_t>(channels), std::get<double>(value));
}

ScaleAndShift affine_of(const settings::NormalizeOptions& normalize, std::int64_t channels) {
  ScaleAndShift affine;
  const auto mean = per_channel(normalize.mean, channels);
  const auto std = per_channel(normalize.std, channels);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    affine.scale.push_back(1 / (255 * std[i]));
    affine.shift.push_back(-mean[i] / std[i]);
  }
  return affine;
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
    refuse(
        "the network has {} parameters, but an ONNX file must be smaller than 2 GiB; export the "
        "weights with --format safetensors, and the network with --format python",
        net.parameters);
  }
  OnnxGraph graph;
  graph.input = {"images", {channels, height, width}, takes_bytes ? /*UINT8*/ 2 : kFloat32};
  graph.output = {takes_bytes ? "probabilities" : "logits", {classes}};
  graph.description = takes_bytes
                          ? fmt::format("Images [N,{},{},{}], uint8, give probabilities [N,{}].",
                                        channels, height, width, classes)
                          : input_text(net, pictures.normalize);
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
