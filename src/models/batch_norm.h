#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>

#include <functional>
#include <memory>
#include <utility>

namespace mnist_train::models {

/// Sums a tensor over all ranks, in place. All ranks must call it.
using SumOverRanks = std::function<void(at::Tensor&)>;

/// torch.nn.BatchNorm2d (momentum 0.1, epsilon 1e-5) with its state_dict: weight, bias,
/// running_mean, running_var and num_batches_tracked, all but the last in fp32 whatever the
/// activations are. It sums more precisely, in fp32 on a CPU, than LibTorch's kernel, whose
/// gradients of a ResNet-18 are several percent off.
class BatchNorm : public torch::nn::Module {
 public:
  /// `momentum` is the weight of a batch in the running statistics.
  explicit BatchNorm(std::int64_t channels, double epsilon = 1e-5, double momentum = 0.1);

  /// Normalizes x [N,C,H,W] or [N,C], in training by the statistics of the batch.
  at::Tensor forward(const at::Tensor& x) { return forward_fused(x, {}, /*relu=*/false); }
  /// Does the same, then adds the residual, which is like x or undefined, and applies a ReLU where
  /// `relu` says so. On a GPU kernels do all of it at once.
  at::Tensor forward_fused(const at::Tensor& x, const at::Tensor& residual, bool relu);
  /// Does the same for x = convolution(images), a convolution with a bias. Where kernels do it,
  /// they take the bias, which moves nothing but the running mean and has a gradient of exactly 0:
  /// the convolution adds none, and no sum is its gradient.
  at::Tensor forward_convolved(torch::nn::Conv2dImpl& convolution, const at::Tensor& images,
                               const at::Tensor& residual, bool relu);
  /// From now on the statistics of a training batch, and their gradients, are summed over the
  /// ranks, so that every rank must run forward and backward, a rank without samples too.
  void synchronize(SumOverRanks sum) { sum_ = std::move(sum); }

 private:
  bool uses_kernels(const at::Tensor& x) const;
  at::Tensor forward_by_kernels(const at::Tensor& x, const at::Tensor& convolution_bias,
                                const at::Tensor& residual, bool relu);
  at::Tensor normalize(const at::Tensor& x);
  at::Tensor forward_by_rows(const at::Tensor& x);

  at::Tensor weight_;
  at::Tensor bias_;
  at::Tensor running_mean_;
  at::Tensor running_var_;
  at::Tensor num_batches_tracked_;  // scalar i64
  double epsilon_;
  double momentum_;
  SumOverRanks sum_;
};

/// A batch norm with the layers around it that are computed together with it.
struct BatchNormOperation {
  std::shared_ptr<torch::nn::Conv2dImpl> convolution;  // with a bias; null where there is none
  std::shared_ptr<BatchNorm> norm;
  bool relu = false;

  at::Tensor operator()(const at::Tensor& x, const at::Tensor& residual = {}) const {
    return convolution == nullptr ? norm->forward_fused(x, residual, relu)
                                  : norm->forward_convolved(*convolution, x, residual, relu);
  }
};

}  // namespace mnist_train::models
