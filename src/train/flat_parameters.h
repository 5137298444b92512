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
  /// device already, as must `half`: a module of the same kind, some of whose parameters are bf16.
  /// Where there is one it is what computes. Its bf16 parameters and their gradients lie in two
  /// buffers of their own, which `refresh_half` and `collect_gradients` convert in one kernel each;
  /// its other parameters and all its buffers become those of `module`.
  FlatParameters(torch::nn::Module& module, std::int64_t riders, torch::nn::Module* half = nullptr);

  const at::Tensor& values() const { return values_; }        // [n] f32
  const at::Tensor& gradients() const { return gradients_; }  // [n] f32
  const at::Tensor& gradients_and_riders() const { return gradients_and_riders_; }
  const at::Tensor& riders() const { return riders_; }
  /// Those that are computed with and whose gradients autograd fills: of `half`, or of the module.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// Gradients and riders become 0.
  void zero() const;
  /// The bf16 parameters become the values again, rounded. To be called when these have changed.
  void refresh_half() const;
  /// Adds the gradients of the bf16 parameters to `gradients` and makes them 0.
  void collect_gradients() const;

  /// A tensor [n] (momentum, a copy of the values) seen as parameter number `index` is laid out.
  at::Tensor view_like_parameter(const at::Tensor& flat, std::size_t index) const;

 private:
  struct Layout {
    std::int64_t offset;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
  };

  static at::Tensor view(const at::Tensor& flat, const Layout& layout);
  std::int64_t lay_out(std::int64_t& half_total);

  std::vector<at::Tensor> parameters_;
  std::vector<Layout> layouts_;
  at::Tensor values_;
  at::Tensor gradients_and_riders_;
  at::Tensor gradients_;
  at::Tensor riders_;
  // [h]: the first h elements of values and gradients are those that are computed in bf16.
  at::Tensor half_values_;
  at::Tensor half_gradients_;
};

}  // namespace mnist_train::train
