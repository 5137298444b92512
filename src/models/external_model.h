#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "models/model.h"

namespace mnist_train::models {

/// A network from outside this program, with the names of its own state_dict. Derived classes
/// register the tensors that its code computes with, so they are trained in place.
class ExternalModel : public Model {
 public:
  at::Tensor forward(const at::Tensor& images) override;
  bool is_external() const override { return true; }
  void compute_in_bfloat16() override;

  /// Throws Error(kConfig) unless the network has parameters, all are trainable, in fp32 and have
  /// one name only, and two images of the shape give logits of its classes.
  void require_usable();

 protected:
  /// `source` begins messages: the key of the config and its file.
  ExternalModel(std::string source, const network::ImageShape& shape)
      : source_(std::move(source)), shape_(shape) {}

  /// Computes the logits of images; see `forward`.
  virtual at::Tensor compute(const at::Tensor& images) = 0;

  /// Throws Error(kConfig) with the source in front of the message.
  [[noreturn]] void refuse(const std::string& message) const;

 private:
  void require_trainable() const;
  void try_forward(at::ScalarType type, const std::string& advice);

  std::string source_;
  network::ImageShape shape_;
};

/// Returns the cause of an error in one line, without the stack traces of LibTorch and TorchScript.
std::string cause_of(const std::exception& error);

/// Returns the network of a TorchScript file, on the CPU, with the weights, and the names of
/// modules, parameters and buffers, of the file. Throws Error(kConfig) if the file is unusable, or
/// its network does not fit images of this shape.
std::shared_ptr<Model> make_script_model(const std::filesystem::path& file,
                                         const network::ImageShape& shape);

/// Loads a plug-in and returns its network, on the CPU, for images of this shape. It reads
/// `options`, the text of a JSON object, and draws its initial weights from LibTorch's generator.
/// Throws Error(kConfig) if library, options (all mistakes at once) or network are unusable.
std::shared_ptr<Model> make_plugin_model(const std::filesystem::path& file,
                                         const std::string& options,
                                         const network::ImageShape& shape);

}  // namespace mnist_train::models
