#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "models/batch_norm.h"
#include "models/gradient_places.h"
#include "network/network.h"
#include "settings/model_options.h"

namespace mnist_train::models {

/// An image classifier. Its submodules have PyTorch's names, so its parameters and buffers by name
/// are the state_dict of the same network in Python.
class Model : public torch::nn::Module {
 public:
  /// Returns the logits [N,classes] of images [N,C,H,W], both in the floating-point type of the
  /// model. The loss computes the log-softmax.
  virtual at::Tensor forward(const at::Tensor& images) = 0;

  /// Returns whether the network's code comes from outside. It may then draw from LibTorch's
  /// generator and do something else in each step, which a CUDA graph would not repeat.
  virtual bool is_external() const { return false; }
  /// Returns the names of the parameters that require no gradient.
  std::set<std::string> frozen_parameters() const;
  /// Returns a remark on the network for its user; "" if there is none.
  virtual std::string remark() const { return {}; }
  /// Sets the mode. Batch norm whose parameters are all frozen stays in evaluation mode.
  void train(bool on = true) override;
  /// Returns the multiply-adds of convolutions and linear layers for one image, if known.
  std::optional<std::int64_t> multiply_adds() const { return multiply_adds_; }
  /// Returns whether training needs `set_sample_seeds` before each `forward`.
  virtual bool needs_sample_seeds() const { return false; }
  /// Sets the seeds [N] i64, on the device, of the random draws for each image of the next
  /// `forward`.
  void set_sample_seeds(at::Tensor seeds) { sample_seeds_ = std::move(seeds); }

  /// Returns the destination buffers of the layers' next gradients, for the caller to set.
  GradientPlaces& gradient_places() { return gradient_places_; }

  /// Makes the batch norm layers use statistics of the global batch, summed over the ranks by
  /// `sum`; `forward` and backward are collective from then on. Throws Error(kConfig) naming each
  /// layer with batch statistics that is not a models::BatchNorm. Frozen ones are left as they are.
  void synchronize_batch_norm(const SumOverRanks& sum);
  bool synchronizes_batch_norm() const { return synchronizes_batch_norm_; }
  /// Converts all parameters except those of layers with running statistics to bf16; `forward` then
  /// takes bf16 images. Throws Error(kConfig) if an external network cannot.
  virtual void compute_in_bfloat16();

 protected:
  /// Sets layers with running statistics whose parameters are all frozen to evaluation mode.
  void keep_frozen_statistics();
  const at::Tensor& sample_seeds() const { return sample_seeds_; }
  void set_multiply_adds(std::int64_t for_one_image) { multiply_adds_ = for_one_image; }

 private:
  at::Tensor sample_seeds_;
  GradientPlaces gradient_places_;
  std::optional<std::int64_t> multiply_adds_;
  bool synchronizes_batch_norm_ = false;
};

/// Returns the model of `options`, on the CPU, with initial weights that depend on `seed` alone, or
/// on the file of an external network. Throws Error(kConfig) if images of this shape do not fit, or
/// such a file is unusable.
std::shared_ptr<Model> make_model(const settings::ModelOptions& options,
                                  const network::ImageShape& shape, std::int64_t seed);

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

/// Returns a model of layers. PyTorch's initial weights are drawn first, layer by layer in the
/// order of the state_dict; then layers for which `init` or their own init names another rule draw
/// again.
std::shared_ptr<Model> make_layered_model(const network::Network& described,
                                          const settings::InitOptions& init,
                                          const network::InitDefaults& defaults);

}  // namespace mnist_train::models
