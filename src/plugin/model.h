#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/version.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// The interface for networks in separate libraries (plug-ins). Apart from LibTorch, a plug-in
/// needs only this header, which is installed as mnist_train/model.h; tests/plugin_example contains
/// a complete CMake project:
///
///     struct Linear : mnist_train::plugin::Classifier {
///       Linear(const mnist_train::plugin::DataShape& shape, mnist_train::plugin::Options& options)
///           : fc(shape.channels * shape.height * shape.width, shape.classes) {
///         register_module("fc", fc);
///       }
///       at::Tensor forward(at::Tensor images) override { return fc(images.flatten(1)); }
///       torch::nn::Linear fc;
///     };
///     MNIST_TRAIN_CLASSIFIER(Linear)
namespace mnist_train::plugin {

/// Incremented with every change to this interface; plug-ins with another version are rejected.
constexpr int kApiVersion = 1;

/// Image size after `data.augment`, and the number of classes.
struct DataShape {
  std::int64_t channels;
  std::int64_t height;
  std::int64_t width;
  std::int64_t classes;
};

/// The config's `model.options`. Each function returns the value of one key, or `otherwise` if the
/// config does not contain the key. Ranges are inclusive. If a value has the wrong type or is out
/// of range, the function also returns `otherwise`. Such values, and keys that the constructor
/// never queries, are reported before training and stop the program.
class Options {
 public:
  virtual ~Options() = default;
  virtual std::int64_t integer(const std::string& name, std::int64_t otherwise, std::int64_t min,
                               std::int64_t max) = 0;
  virtual double number(const std::string& name, double otherwise, double min, double max) = 0;
  virtual bool boolean(const std::string& name, bool otherwise) = 0;
  /// Returns one of `choices`, or any string if `choices` is empty.
  virtual std::string text(const std::string& name, const std::string& otherwise,
                           const std::vector<std::string>& choices) = 0;
};

/// A network for image classification. Its constructor registers parameters, buffers and submodules
/// like any LibTorch module; `model.pt` uses their names. Parameters without requires_grad are
/// frozen by default. LibTorch's generator is seeded before construction and before each step.
class Classifier : public torch::nn::Module {
 public:
  /// Returns the logits [N,classes] for normalised images [N,C,H,W]. Images and parameters are
  /// fp32. If `precision` is bf16, a copy of the network gets bf16 images; its parameters are bf16,
  /// except in layers with running statistics.
  virtual at::Tensor forward(at::Tensor images) = 0;
};

/// A plug-in's versions (the first two fields in every version of this struct) and constructor.
struct EntryPoint {
  int api_version;
  const char* torch_version;
  std::shared_ptr<Classifier> (*make)(const DataShape& shape, Options& options);
};

/// Name of the function that MNIST_TRAIN_CLASSIFIER defines in a plug-in.
constexpr const char* kEntryFunction = "mnist_train_classifier";

}  // namespace mnist_train::plugin

/// Makes `Class` the library's network. `Class` must derive from Classifier and be constructible
/// from `const DataShape&` and `Options&`. Use it once per library, outside any namespace.
#define MNIST_TRAIN_CLASSIFIER(Class)                                                          \
  extern "C" __attribute__((visibility("default"))) const mnist_train::plugin::EntryPoint*     \
  mnist_train_classifier() {                                                                   \
    static const mnist_train::plugin::EntryPoint entry{                                        \
        mnist_train::plugin::kApiVersion, TORCH_VERSION,                                       \
        [](const mnist_train::plugin::DataShape& shape, mnist_train::plugin::Options& options) \
            -> std::shared_ptr<mnist_train::plugin::Classifier> {                              \
          return std::make_shared<Class>(shape, options);                                      \
        }};                                                                                    \
    return &entry;                                                                             \
  }
