#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/gradient_averager.h"

namespace mnist_train::train {

/// All parameters of a module in one tensor and all gradients in another, so that averaging is one
/// all-reduce and the optimizer one kernel. The module's own parameters become views: convolution
/// weights with channels_last strides, the rest contiguous; whatever is laid out like them has
/// their strides by construction. Gradients are collected after backward, which makes new ones:
/// that costs less than zeroing views and adding to them.
class FlatParameters {
 public:
  /// `statistics`: how many scalars lie behind the gradients. The module must be on its device
  /// already, as must `bf16_copy`: a module of the same kind, some of whose parameters are bf16.
  /// Where there is one, it is what computes. Its bf16 parameters then lie in a buffer of their
  /// own, which `refresh_bf16_copy` fills; its other parameters and all its buffers become those of
  /// `module`.
  FlatParameters(torch::nn::Module& module, std::int64_t statistics,
                 torch::nn::Module* bf16_copy = nullptr);
  FlatParameters(const FlatParameters&) = delete;  // averagers know where it is
  FlatParameters& operator=(const FlatParameters&) = delete;

  const at::Tensor& values() const { return values_; }  // [n] f32
  /// Returns the gradients, [n] f32, which the last step has summed over the ranks in the
  /// averager's owned shard; elsewhere they are sums only once they were gathered.
  const at::Tensor& gradients() const { return gradients_; }
  const at::Tensor& statistics() const { return statistics_; }  // [s] f32, behind the gradients
  /// Returns the parameters that compute and that autograd makes gradients of: those of
  /// `bf16_copy`, or of the module.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const at::Tensor& bf16_values() const { return bf16_values_; }  // [h] bf16
  /// Returns those of them that are copies of values in `shard`, a view; empty where there are
  /// none.
  at::Tensor bf16_values_of(comm::Shard shard) const;
  /// Returns what an averager works on; it calls `collect_gradients` of this object.
  comm::GradientBuffer gradient_buffer();

  /// Drops the gradients of the step before.
  void clear_gradients();
  /// Moves the parameters' gradients to `gradients`: it replaces what is there in the first call
  /// after `clear_gradients` and adds to it in later ones. Throws Error(kRunFailed) that names a
  /// parameter which has none.
  void collect_gradients();
  /// Sets the bf16 parameters within `shard` to the rounded values, after these have changed.
  void refresh_bf16_copy(comm::Shard shard) const;

  /// Returns a tensor [n] (momentum, a copy of the values) seen as parameter number `index` is laid
  /// out.
  at::Tensor view_like_parameter(const at::Tensor& flat, std::size_t index) const;

 private:
  struct Layout {
    std::int64_t offset;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
  };

  void collect(const std::vector<at::Tensor>& gradients, at::ScalarType type);
  static at::Tensor view(const at::Tensor& flat, const Layout& layout);
  std::int64_t lay_out(std::int64_t& bf16_total);

  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_;
  std::vector<Layout> layouts_;
  at::Tensor values_;
  at::Tensor gradients_and_statistics_;  // the next two are views of it
  at::Tensor gradients_;
  at::Tensor statistics_;
  std::vector<at::Tensor> gradient_views_;  // of `gradients_`, one a parameter
  at::Tensor bf16_values_;                  // of the first h values
  bool has_gradients_ = false;              // of this step
};

}  // namespace mnist_train::train
