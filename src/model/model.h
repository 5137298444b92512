#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "options/model_options.h"

namespace mnist_train::model {

/// What the data decide about a model.
struct ImageShape {
  std::int64_t channels = 1;
  std::int64_t height = 28;
  std::int64_t width = 28;
  std::int64_t classes = 10;
};

/// A classifier. Submodules carry PyTorch's names, so `named_parameters` and `named_buffers` are
/// its state_dict.
class Model : public torch::nn::Module {
 public:
  /// Images [N,C,H,W] f32 -> logits [N,classes]. A final log-softmax belongs to the loss, which
  /// applies it.
  virtual at::Tensor forward(const at::Tensor& images) = 0;
};

/// One row of the table of models.
struct ModelEntry {
  options::ModelName name;
  std::shared_ptr<Model> (*make)(const options::ModelOptions& options, const ImageShape& shape);
};

/// All models that there are; a new one is a file pair and a row.
std::span<const ModelEntry> model_table();

/// A model on the CPU with the initial weights that `seed` gives, the same in every process. Throws
/// Error(kConfig) when the images are too small for it.
std::shared_ptr<Model> make_model(const options::ModelOptions& options, const ImageShape& shape,
                                  std::int64_t seed);

}  // namespace mnist_train::model
