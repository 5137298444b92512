#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>

namespace mnist_train::models {

/// Sums a tensor over all ranks, in place. A collective.
using SumOverRanks = std::function<void(at::Tensor&)>;

/// torch.nn.BatchNorm2d (momentum 0.1, epsilon 1e-5): weight, bias, running_mean, running_var,
/// num_batches_tracked, all but the last in fp32 whatever the activations are.
///
/// In fp32 on a CPU it adds up more carefully than LibTorch does there, whose gradients of a
/// ResNet-18 are several percent off.
///
/// With `synchronize` the statistics and their gradients are those of the global batch: sums go
/// over the ranks, so every rank must run it, one without samples too.
class BatchNorm2d : public torch::nn::Module {
 public:
  explicit BatchNorm2d(std::int64_t channels);

  /// [N,C,H,W] -> the same.
  at::Tensor forward(const at::Tensor& x);
  void synchronize(SumOverRanks sum) { sum_ = std::move(sum); }

 private:
  at::Tensor forward_by_rows(const at::Tensor& x);

  at::Tensor weight_;
  at::Tensor bias_;
  at::Tensor running_mean_;
  at::Tensor running_var_;
  at::Tensor num_batches_tracked_;  // scalar i64
  SumOverRanks sum_;
};

}  // namespace mnist_train::models
