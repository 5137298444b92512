#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "models/batch_norm.h"
#include "models/gradient_places.h"
#include "network/network.h"
#include "settings/model_options.h"

namespace mnist_train::models {

/// A classifier of images. Its submodules have PyTorch's names, so that its parameters and buffers
/// by name are the state_dict of the same network in Python.
class Model : public torch::nn::Module {
 public:
  /// Returns the logits [N,classes] of images [N,C,H,W]; both have the floating-point type that the
  /// model computes in. A final log-softmax is left to the loss.
  virtual at::Tensor forward(const at::Tensor& images) = 0;

  /// Returns whether the network's code is not this program's own. It may then draw from LibTorch's
  /// generator, and do something else in each step, which a CUDA graph would not repeat.
  virtual bool is_external() const { return false; }
  /// Returns the multiply-adds of convolutions and linear layers for one image, if they are known.
  std::optional<std::int64_t> multiply_adds() const { return multiply_adds_; }
  /// Returns whether training needs `set_sample_seeds` before each `forward`.
  virtual bool needs_sample_seeds() const { return false; }
  /// Sets the numbers [N] i64, on the device, from which the model draws for the images of the next
  /// `forward`, each image by itself.
  void set_sample_seeds(at::Tensor seeds) { sample_seeds_ = std::move(seeds); }

  /// Returns where the layers' next gradients are wanted, for the caller to say.
  GradientPlaces& gradient_places() { return gradient_places_; }

  /// Makes the batch norm layers use the statistics of the global batch, which `sum` adds up over
  /// the ranks; `forward` and backward are collectives from then on. Throws Error(kConfig) naming
  /// each layer with statistics of its own that is not a models::BatchNorm.
  void synchronize_batch_norm(const SumOverRanks& sum);
  bool synchronizes_batch_norm() const { return synchronizes_batch_norm_; }
  /// Turns all parameters but those of layers with running statistics into bf16; `forward` then
  /// takes bf16 images. Throws Error(kConfig) where an external network cannot.
  virtual void compute_in_bfloat16();

 protected:
  const at::Tensor& sample_seeds() const { return sample_seeds_; }
  void set_multiply_adds(std::int64_t for_one_image) { multiply_adds_ = for_one_image; }

 private:
  at::Tensor sample_seeds_;
  GradientPlaces gradient_places_;
  std::optional<std::int64_t> multiply_adds_;
  bool synchronizes_batch_norm_ = false;
};

/// Returns the model that `options` describe, on the CPU, with initial weights that depend on
/// `seed` alone, or on the file of an external network. Throws Error(kConfig) where images of this
/// shape do not fit, or where such a file is not what it has to be.
std::shared_ptr<Model> make_model(const settings::ModelOptions& options,
                                  const network::ImageShape& shape, std::int64_t seed);

/// Makes a model of layers, with the initial weights that PyTorch draws, layer by layer in the
/// order of the state_dict; then those layers that `init` or the layer's own init name draw again.
std::shared_ptr<Model> make_layered_model(const network::Network& described,
                                          const settings::InitOptions& init,
                                          const network::InitDefaults& defaults);

}  // namespace mnist_train::models
