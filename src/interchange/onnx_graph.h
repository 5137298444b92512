#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace mnist_train::interchange {

inline constexpr std::int32_t kFloat32 = 1;  // of TensorProto.DataType

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

/// An input or output of the graph, for any number of images.
struct OnnxValue {
  std::string name;
  std::vector<std::int64_t> shape;  // of one image
  bool is_bytes = false;            // uint8, else float32
};

/// A graph of operators (https://github.com/onnx/onnx/blob/main/docs/IR.md).
class OnnxGraph {
 public:
  OnnxValue input;
  OnnxValue output;
  std::string description;
  std::vector<std::pair<std::string, std::string>> metadata;

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

}  // namespace mnist_train::interchange
