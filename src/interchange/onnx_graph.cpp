#include "interchange/onnx_graph.h"

#include <bit>
#include <protozero/pbf_writer.hpp>

#include "base/version.h"

namespace mnist_train::interchange {

namespace {

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
  kOperatorSet = 8,
  kMetadata = 14
};
enum MetadataField : FieldNumber { kMetadataKey = 1, kMetadataValue = 2 };
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
constexpr std::int32_t kUint8 = 2;  // of TensorProto.DataType
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
  tensor.add_enum(kElementType, content.is_bytes ? kUint8 : kFloat32);
  pbf_writer shape(tensor, kShape);
  pbf_writer(shape, kShapeDimension).add_string(kSizeName, "N");
  for (const std::int64_t size : content.shape) {
    pbf_writer(shape, kShapeDimension).add_int64(kSize, size);
  }
}

}  // namespace

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
  for (const auto& [key, value] : metadata) {
    pbf_writer entry(model, kMetadata);
    entry.add_string(kMetadataKey, key);
    entry.add_string(kMetadataValue, value);
  }
  return bytes;
}

}  // namespace mnist_train::interchange
