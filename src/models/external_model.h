#pragma once

#include <string>

#include "models/model.h"

namespace mnist_train::models {

/// A network whose code is not this program's own. It has the names of its own state_dict: whoever
/// derives registers the tensors that the code computes with, so that they are trained in place.
class ExternalModel : public Model {
 public:
  at::Tensor forward(const at::Tensor& images) override;
  bool is_external() const override { return true; }
  void compute_in_bfloat16() override;

  /// Throws Error(kConfig) unless the network has parameters, all of them are trained, in fp32 and
  /// known by one name alone, and two images of the shape give logits of its classes.
  void require_usable();

 protected:
  /// `source` begins messages: the key of the config and the file that it names.
  ExternalModel(std::string source, const network::ImageShape& shape)
      : source_(std::move(source)), shape_(shape) {}

  /// Computes the logits of images, as `forward` promises to.
  virtual at::Tensor compute(const at::Tensor& images) = 0;

  /// Throws Error(kConfig) with the source in front of the message.
  [[noreturn]] void refuse(const std::string& message) const;

 private:
  void require_trainable() const;
  void try_forward(at::ScalarType type, const std::string& advice);

  std::string source_;
  network::ImageShape shape_;
};

/// Returns what went wrong in one line: LibTorch's and TorchScript's messages have it among stack
/// traces.
std::string cause_of(const std::exception& error);

}  // namespace mnist_train::models
