#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

namespace mnist_train::train {

/// All parameters of a module in one tensor and all gradients in another, so that averaging is one
/// all-reduce and the optimizer one kernel. The module's own tensors become views: convolution
/// weights with channels_last strides, the rest contiguous; parameter, gradient and everything that
/// is laid out like them share strides by construction.
class FlatParameters {
 public:
  /// `riders`: elements behind the gradients that travel with them. The module must be on its
  /// device already.
  FlatParameters(torch::nn::Module& module, std::int64_t riders);

  const at::Tensor& values() const { return values_; }        // [n] f32
  const at::Tensor& gradients() const { return gradients_; }  // [n] f32
  const at::Tensor& gradients_and_riders() const { return gradients_and_riders_; }
  const at::Tensor& riders() const { return riders_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// A tensor [n] (momentum, a copy of the values) seen as parameter number `index` is laid out.
  at::Tensor view_like_parameter(const at::Tensor& flat, std::size_t index) const;

 private:
  struct Layout {
    std::int64_t offset;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
  };

  static at::Tensor view(const at::Tensor& flat, const Layout& layout);

  std::vector<at::Tensor> parameters_;
  std::vector<Layout> layouts_;
  at::Tensor values_;
  at::Tensor gradients_and_riders_;
  at::Tensor gradients_;
  at::Tensor riders_;
};

}  // namespace mnist_train::train
