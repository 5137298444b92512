#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "models/batch_norm.h"
#include "network/network.h"
#include "settings/model_options.h"

namespace mnist_train::models {

/// Destination buffers for the gradients of parameters. A layer may write a gradient there and
/// return a view of the buffer, which autograd adopts; other gradients are copied there later.
class GradientDestinations {
 public:
  /// Sets the buffer, of the same type and layout as the parameter, for the parameter's next
  /// gradient. An undefined tensor removes the buffer.
  void set(const at::Tensor& parameter, at::Tensor buffer) {
    buffers_[parameter.unsafeGetTensorImpl()] = std::move(buffer);
  }
  /// Returns the buffer for the parameter's next gradient, but only once, because a second gradient
  /// is added to the first. If the result is undefined, the caller allocates a new tensor.
  at::Tensor take(const at::Tensor& parameter) {
    const auto found = buffers_.find(parameter.unsafeGetTensorImpl());
    return found == buffers_.end() ? at::Tensor() : std::exchange(found->second, {});
  }

 private:
  std::unordered_map<const at::TensorImpl*, at::Tensor> buffers_;
};

/// An image classifier. Its submodules have PyTorch's names, so its named parameters and buffers
/// are the state_dict of the same network in Python.
class Model : public torch::nn::Module {
 public:
  /// Returns the logits [N,classes] of images [N,C,H,W], both in the model's floating-point type.
  /// The log-softmax is part of the loss.
  virtual at::Tensor forward(const at::Tensor& images) = 0;

  /// Returns whether the network's code is external. It may then use LibTorch's random number
  /// generator and behave differently in each step, which a CUDA graph would not reproduce.
  virtual bool is_external() const { return false; }
  /// Returns the memory format of convolution weights, and the one in which images need no copy.
  virtual at::MemoryFormat memory_format() const { return at::MemoryFormat::ChannelsLast; }
  /// Returns the names of the parameters that require no gradient.
  std::set<std::string> frozen_parameters() const;
  /// Returns a remark about the network for the user, or "".
  virtual std::string remark() const { return {}; }
  /// Sets the mode. Batch norms whose parameters are all frozen remain in evaluation mode.
  void train(bool on = true) override;
  /// Returns the number of multiply-adds in convolutions and linear layers per image, if known.
  std::optional<std::int64_t> multiply_adds() const { return multiply_adds_; }
  /// Returns whether training needs `set_sample_seeds` before each `forward`.
  virtual bool needs_sample_seeds() const { return false; }
  /// Sets the random seeds [N] i64, on the device, one per image of the next `forward`.
  void set_sample_seeds(at::Tensor seeds) { sample_seeds_ = std::move(seeds); }

  /// Returns the destination buffers for the layers' next gradients, for the caller to set.
  GradientDestinations& gradient_destinations() { return gradient_destinations_; }

  /// Makes batch norm layers use statistics of the global batch, summed over the ranks by `sum`; in
  /// training, `forward` and the backward pass are then collective. Leaves frozen batch norms
  /// unchanged. If layers other than models::BatchNorm use batch statistics, throws an
  /// Error(kConfig) that names them.
  void synchronize_batch_norm(const AllReduce& sum);
  bool synchronizes_batch_norm() const { return synchronizes_batch_norm_; }
  /// Converts all parameters except those of layers with running statistics to bf16; `forward` then
  /// expects bf16 images. Throws Error(kConfig) if an external network does not support this.
  virtual void compute_in_bfloat16();

 protected:
  /// Sets layers with running statistics to evaluation mode if all their parameters are frozen.
  void keep_frozen_statistics();
  const at::Tensor& sample_seeds() const { return sample_seeds_; }
  void set_multiply_adds(std::int64_t per_image) { multiply_adds_ = per_image; }

 private:
  at::Tensor sample_seeds_;
  GradientDestinations gradient_destinations_;
  std::optional<std::int64_t> multiply_adds_;
  bool synchronizes_batch_norm_ = false;
};

/// Returns whether a buffer is a constant mask: of bools, or with infinite values. Masks cannot be
/// averaged, because differences of such values are undefined or NaN.
bool is_mask(const at::Tensor& buffer);

/// Returns the model described by `options`, on the CPU, with initial weights that depend only on
/// `seed` or come from the file of an external network. Throws Error(kConfig) if the network cannot
/// process images of this shape or its file is unusable.
std::shared_ptr<Model> make_model(const settings::ModelOptions& options,
                                  const network::ImageShape& shape, std::int64_t seed);

/// Returns the network of a TorchScript file, on the CPU; weights and names of modules, parameters
/// and buffers are those in the file. Throws Error(kConfig) if the file is unusable or its network
/// cannot process images of this shape.
std::shared_ptr<Model> make_script_model(const std::filesystem::path& file,
                                         const network::ImageShape& shape);

/// Loads a plug-in and returns its network, on the CPU, for images of this shape. The plug-in reads
/// `options`, a JSON object as a string, and draws its initial weights from LibTorch's generator.
/// Throws Error(kConfig) if the library, options (listing all mistakes) or network is unusable.
std::shared_ptr<Model> make_plugin_model(const std::filesystem::path& file,
                                         const std::string& options,
                                         const network::ImageShape& shape);

/// Returns a model made of layers. Initial weights are first drawn as in PyTorch, layer by layer in
/// state_dict order; then those with another rule, from `init` or the layer's init, are redrawn.
std::shared_ptr<Model> make_layered_model(const network::Network& definition,
                                          const settings::InitOptions& init,
                                          const network::InitDefaults& defaults);

}  // namespace mnist_train::models
