#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "models/batch_norm.h"
#include "settings/model_options.h"

namespace mnist_train::models {

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
  /// Images [N,C,H,W] -> logits [N,classes], both of the type that the model computes in. A final
  /// log-softmax belongs to the loss, which applies it.
  virtual at::Tensor forward(const at::Tensor& images) = 0;

  /// From now on batch norm layers use the statistics of the global batch, and `forward` and
  /// backward are collectives.
  void synchronize_batch_norm(const SumOverRanks& sum);
  /// Parameters become bf16, those of batch norm layers stay fp32; `forward` then takes bf16
  /// images.
  void compute_in_bfloat16();
  bool synchronizes_batch_norm() const { return synchronizes_batch_norm_; }

 private:
  bool synchronizes_batch_norm_ = false;
};

/// One row of the table of models.
struct ModelEntry {
  settings::ModelName name;
  std::shared_ptr<Model> (*make)(const settings::ModelOptions& options, const ImageShape& shape);
};

/// All models that there are; a new one is a file pair and a row.
std::span<const ModelEntry> model_table();

/// A model on the CPU with the initial weights that `seed` gives, the same in every process. Throws
/// Error(kConfig) when the images are too small for it.
std::shared_ptr<Model> make_model(const settings::ModelOptions& options, const ImageShape& shape,
                                  std::int64_t seed);

}  // namespace mnist_train::models
