#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/version.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// The interface of networks in libraries of their own. Installed as mnist_train/model.h, it is all
/// that a plug-in needs beside LibTorch; tests/plugin_example has the CMake project around it:
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

/// Grows with every change of this header; plug-ins that were built with another version are
/// refused.
constexpr int kApiVersion = 1;

/// Size of the images, after `data.augment`, and the number of classes.
struct DataShape {
  std::int64_t channels;
  std::int64_t height;
  std::int64_t width;
  std::int64_t classes;
};

/// The config's `model.options`. Each function returns the value of one key, or `otherwise` if the
/// config lacks the key. Ranges include both ends. Values of another type or out of range, and keys
/// that were never asked for, end the program before training with messages that name them; until
/// then a function that meets such a value returns `otherwise`.
class Options {
 public:
  virtual ~Options() = default;
  virtual std::int64_t integer(const std::string& name, std::int64_t otherwise, std::int64_t min,
                               std::int64_t max) = 0;
  virtual double number(const std::string& name, double otherwise, double min, double max) = 0;
  virtual bool boolean(const std::string& name, bool otherwise) = 0;
  /// Returns one of `choices`, or any text if these are empty.
  virtual std::string text(const std::string& name, const std::string& otherwise,
                           const std::vector<std::string>& choices) = 0;
};

/// A network that is trained on images. Its constructor registers parameters, buffers and modules
/// as in any module of LibTorch: their names are the names of `model.pt`, and every parameter is
/// trained. LibTorch's generator is seeded before the constructor and before each step.
class Classifier : public torch::nn::Module {
 public:
  /// Returns the logits [N,classes] of normalised images [N,C,H,W] f32, or bf16 if the network is
  /// trained in bf16; its parameters then are bf16 too, except those of layers with running
  /// statistics.
  virtual at::Tensor forward(at::Tensor images) = 0;
};

/// Versions and constructor of a plug-in. The versions come first in every version of the
/// interface.
struct EntryPoint {
  int api_version;
  const char* torch_version;
  std::shared_ptr<Classifier> (*make)(const DataShape& shape, Options& options);
};

/// The function that MNIST_TRAIN_CLASSIFIER defines in a plug-in.
constexpr const char* kEntryFunction = "mnist_train_classifier";

}  // namespace mnist_train::plugin

/// Makes `Class`, which derives from Classifier and is constructed from `const DataShape&` and
/// `Options&`, the network of the library. Use it once in a library, outside of namespaces.
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
