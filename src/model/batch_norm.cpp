#include "model/batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

namespace mnist_train::model {

namespace {

constexpr double kMomentum = 0.1;
constexpr double kEpsilon = 1e-5;

at::Tensor per_channel(const at::Tensor& values) { return values.view({1, -1, 1, 1}); }

at::Tensor sum_by_channel(const at::Tensor& x) { return x.sum(at::IntArrayRef{0, 2, 3}); }  // [C]

/// Normalises with the statistics of the global batch. Backward needs two sums by channel over the
/// global batch, too: dx = weight * inverse_std * (dy - mean(dy) - x_hat * mean(dy * x_hat)).
class SynchronizedBatchNorm : public torch::autograd::Function<SynchronizedBatchNorm> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& mean, const at::Tensor& inverse_std, double count,
                            const SumOverRanks* sum) {
    const at::Tensor x_hat = (x.to(at::kFloat) - per_channel(mean)) * per_channel(inverse_std);
    context->save_for_backward({x_hat, weight, inverse_std});
    context->saved_data["count"] = count;
    context->saved_data["sum"] = reinterpret_cast<std::int64_t>(sum);
    return (x_hat * per_channel(weight) + per_channel(bias)).to(x.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x_hat = saved[0];
    const at::Tensor& weight = saved[1];
    const double count = context->saved_data["count"].toDouble();
    const auto* sum = reinterpret_cast<const SumOverRanks*>(context->saved_data["sum"].toInt());
    const at::Tensor dy = gradients[0].to(at::kFloat);
    const at::Tensor bias_gradient = sum_by_channel(dy);
    const at::Tensor weight_gradient = sum_by_channel(dy * x_hat);
    // Of the weight and bias each rank keeps its own share: the averaging of gradients adds them
    // up.
    at::Tensor global = at::cat({bias_gradient, weight_gradient});
    (*sum)(global);
    const auto means = (global / count).chunk(2);
    const at::Tensor dx = (dy - per_channel(means[0]) - x_hat * per_channel(means[1])) *
                          per_channel(weight * saved[2]);
    return {dx.to(gradients[0].scalar_type()),
            weight_gradient,
            bias_gradient,
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

BatchNorm2d::BatchNorm2d(std::int64_t channels)
    : weight_(register_parameter("weight", at::ones({channels}))),
      bias_(register_parameter("bias", at::zeros({channels}))),
      running_mean_(register_buffer("running_mean", at::zeros({channels}))),
      running_var_(register_buffer("running_var", at::ones({channels}))),
      num_batches_tracked_(register_buffer("num_batches_tracked", at::zeros({}, at::kLong))) {}

at::Tensor BatchNorm2d::forward(const at::Tensor& x) {
  if (is_training() && sum_) return forward_synchronized(x);
  if (is_training()) num_batches_tracked_.add_(1);
  return at::batch_norm(x, weight_, bias_, running_mean_, running_var_, is_training(), kMomentum,
                        kEpsilon, /*cudnn_enabled=*/true);
}

at::Tensor BatchNorm2d::forward_synchronized(const at::Tensor& x) {
  at::Tensor mean;
  at::Tensor variance;
  double count = 0;
  {
    const at::NoGradGuard no_grad;
    const std::int64_t channels = x.size(1);
    const at::Tensor values = x.to(at::kDouble);  // sums of squares lose too much in fp32
    at::Tensor sums = at::cat({sum_by_channel(values), sum_by_channel(values * values),
                               at::full({1}, x.numel() / channels, values.options())});
    sum_(sums);
    count = sums[2 * channels].item<double>();
    const at::Tensor global_mean = sums.narrow(0, 0, channels) / count;
    mean = global_mean.to(at::kFloat);
    variance = (sums.narrow(0, channels, channels) / count - global_mean * global_mean)
                   .clamp_min(0)
                   .to(at::kFloat);
    running_mean_.lerp_(mean, kMomentum);
    running_var_.lerp_(variance * (count / std::max(1.0, count - 1)), kMomentum);
    num_batches_tracked_.add_(1);
  }
  return SynchronizedBatchNorm::apply(x, weight_, bias_, mean, (variance + kEpsilon).rsqrt(), count,
                                      &sum_);
}

}  // namespace mnist_train::model
