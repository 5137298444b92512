#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>

#include <functional>
#include <utility>

namespace mnist_train::models {

/// Sums a tensor over all ranks, in place. Collective.
using AllReduce = std::function<void(at::Tensor&)>;

/// torch.nn.BatchNorm1d or BatchNorm2d with its state_dict: weight, bias, running_mean, running_var
/// and num_batches_tracked, all but the last in fp32, whatever the type of the activations. In fp32
/// on CPUs it sums more precisely than LibTorch's kernel, whose gradients are off by several
/// percent for a ResNet-18.
class BatchNorm : public torch::nn::Module {
 public:
  /// `momentum` is the weight of the latest batch in the running statistics.
  explicit BatchNorm(std::int64_t channels, double epsilon = 1e-5, double momentum = 0.1);

  /// Normalises x [N,C,H,W] or [N,C]; in training mode, with the batch's statistics.
  at::Tensor forward(const at::Tensor& x) { return forward_fused(nullptr, x, {}, false); }
  /// Normalises x or, if `convolution` is not null, its output for x; the convolution must have a
  /// bias. Then adds the residual, if defined, and optionally applies a ReLU. In training on a GPU,
  /// unless synchronised, custom kernels fuse all but the convolution. Its bias then affects only
  /// the running mean, and has a gradient of exactly 0, so the kernels add it only to that mean.
  at::Tensor forward_fused(torch::nn::Conv2dImpl* convolution, const at::Tensor& x,
                           const at::Tensor& residual, bool relu);
  /// From now on, sums the statistics of training batches, and their gradients, over the ranks.
  /// Every rank, even one that has no samples, must then run forward and backward.
  void synchronize(AllReduce sum) { sum_ = std::move(sum); }

  // For kernels that fuse the layer with others.

  const at::Tensor& running_mean() const { return running_mean_; }
  const at::Tensor& running_var() const { return running_var_; }
  const AllReduce& sum_over_ranks() const { return sum_; }
  void count_batch() { num_batches_tracked_.add_(1); }

 private:
  at::Tensor normalize(const at::Tensor& x);
  at::Tensor forward_with_batch_statistics(const at::Tensor& x);

  at::Tensor weight_;
  at::Tensor bias_;
  at::Tensor running_mean_;
  at::Tensor running_var_;
  at::Tensor num_batches_tracked_;  // scalar i64
  double epsilon_;
  double momentum_;
  AllReduce sum_;
};

}  // namespace mnist_train::models
