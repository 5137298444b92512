#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace mnist_train::interchange {

/// An argument of an operator of operator set 17 that is no tensor.
struct OnnxAttribute {
  std::string name;
  std::variant<std::int64_t, float, std::vector<std::int64_t>> value;
};

/// One operator and the names of the tensors between which it stands.
struct OnnxNode {
  std::string operation;
  std::string name;
  std::vector<std::string> inputs;
  std::string output;
  std::vector<OnnxAttribute> attributes;
};

/// A tensor that the file holds. A span must stay valid until the file is written.
struct OnnxTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::variant<std::span<const float>, std::vector<float>, std::vector<std::int64_t>> values;
};

/// A tensor of float32 that goes into the graph or comes out of it, for any number of images.
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

  /// Adds an operator behind those whose outputs it takes. Returns the name of its output, which is
  /// made of the path of the layer to which it belongs.
  std::string add_node(const std::string& path, const std::string& operation,
                       std::vector<std::string> inputs, std::vector<OnnxAttribute> attributes = {});

  /// Adds a tensor that has a name of its own; returns the name.
  std::string add_tensor(OnnxTensor tensor);

  /// Adds a tensor without a name; returns one for it.
  std::string add_constant(std::vector<std::int64_t> shape, std::vector<float> values);
  std::string add_constant(std::vector<std::int64_t> values);
  std::string add_constant(double value) { return add_constant({}, {static_cast<float>(value)}); }

  /// Makes what the last operator gives the output of the graph, and returns the bytes of an ONNX
  /// file. There must be an operator.
  std::string write();

 private:
  std::string constant_name() { return "/constant_" + std::to_string(constants_++); }

  std::vector<OnnxNode> nodes_;
  std::vector<OnnxTensor> tensors_;
  std::map<std::string, int> names_;  // how many nodes would have each
  int constants_ = 0;
};

}  // namespace mnist_train::interchange
