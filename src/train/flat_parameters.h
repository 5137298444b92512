#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

#include "comm/shard.h"

namespace mnist_train::train {

/// All parameters of a module in one tensor and all gradients in another, so that averaging is one
/// all-reduce and the optimizer one kernel. The module's own parameters become views: convolution
/// weights with channels_last strides, the rest contiguous; whatever is laid out like them shares
/// their strides by construction. Gradients are brought over after backward, which makes them
/// without looking at what was there: cheaper than zeroing and adding in place.
class FlatParameters {
 public:
  /// `riders`: elements behind the gradients that travel with them. The module must be on its
  /// device already, as must `bf16_copy`: a module of the same kind, some of whose parameters are
  /// bf16. Where there is one it is what computes. Its bf16 parameters lie in a buffer of their
  /// own, which `refresh_bf16_copy` fills; its other parameters and all its buffers become those of
  /// `module`.
  FlatParameters(torch::nn::Module& module, std::int64_t riders,
                 torch::nn::Module* bf16_copy = nullptr);

  const at::Tensor& values() const { return values_; }  // [n] f32
  /// [n] f32; after a step averaged in the averager's own part, elsewhere only once gathered.
  const at::Tensor& gradients() const { return gradients_; }
  const at::Tensor& gradients_and_riders() const { return gradients_and_riders_; }
  const at::Tensor& riders() const { return riders_; }
  /// Those that are computed with and whose gradients autograd makes: of `bf16_copy`, or of the
  /// module.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const at::Tensor& bf16_values() const { return bf16_values_; }  // [h] bf16

  /// For the next step: the parameters have no gradients, the riders are 0.
  void clear() const;
  /// The bf16 parameters become the values again, rounded. To be called when these have changed, in
  /// `part`.
  void refresh_bf16_copy(comm::Shard part) const;
  /// Takes the parameters' gradients, which all must have, to `gradients`, in place of what was
  /// there or added to it.
  void collect_gradients(bool add) const;

  /// A tensor [n] (momentum, a copy of the values) seen as parameter number `index` is laid out.
  at::Tensor view_like_parameter(const at::Tensor& flat, std::size_t index) const;

 private:
  struct Layout {
    std::int64_t offset;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
  };

  static at::Tensor view(const at::Tensor& flat, const Layout& layout);
  std::int64_t lay_out(std::int64_t& bf16_total);

  std::vector<at::Tensor> parameters_;
  std::vector<Layout> layouts_;
  at::Tensor values_;
  at::Tensor gradients_and_riders_;
  at::Tensor gradients_;
  at::Tensor riders_;
  std::vector<at::Tensor> places_;  // of the parameters' gradients
  at::Tensor bf16_values_;          // of the first h values
};

}  // namespace mnist_train::train
