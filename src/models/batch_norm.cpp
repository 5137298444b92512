#include "models/batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/operations.h"
#include "models/layer_operations.h"

namespace mnist_train::models {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// [N,C,H,W] -> [N*H*W,C] in fp32; a view if layout and type allow it.
at::Tensor to_rows(const at::Tensor& x) {
  if (x.dim() == 2) return x.to(at::kFloat);
  return x.permute({0, 2, 3, 1}).reshape({-1, x.size(1)}).to(at::kFloat);
}

at::Tensor to_images(const at::Tensor& rows, const at::Tensor& like) {
  if (like.dim() == 2) return rows.to(like.scalar_type());
  return rows.view({like.size(0), like.size(2), like.size(3), like.size(1)})
      .permute({0, 3, 1, 2})
      .to(like.scalar_type());
}

/// The affine part of batch norm. Its backward pass needs two sums per channel over the global
/// batch: dx = weight * inverse_std * (dy - mean(dy) - x_hat * mean(dy * x_hat)).
class NormalizedRows : public torch::autograd::Function<NormalizedRows> {
 public:
  /// `x_hat` is the normalised x, [N*H*W,C]; `count`, a scalar on the device, is N*H*W, summed over
  /// the ranks if batch norm is synchronised; otherwise, `sum` is null.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const at::Tensor& x_hat,
                            const at::Tensor& inverse_std, const at::Tensor& count,
                            const AllReduce* sum) {
    context->save_for_backward({x_hat, weight, inverse_std, count});
    context->saved_data["sum"] = reinterpret_cast<std::int64_t>(sum);
    return to_images(at::addcmul(bias, x_hat, weight), x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& x_hat = saved[0];
    const at::Tensor scale = saved[1] * saved[2];
    const at::Tensor& count = saved[3];
    // NOLINTNEXTLINE(performance-no-int-to-ptr): autograd saves integers but not pointers
    const auto* sum = reinterpret_cast<const AllReduce*>(context->saved_data["sum"].toInt());
    const at::Tensor dy = to_rows(gradients[0]);
    const at::Tensor bias_gradient = dy.sum(0);
    const at::Tensor weight_gradient = (dy * x_hat).sum(0);
    // Gradients of weight and bias remain local: gradient averaging sums them.
    if (!context->needs_input_grad(0)) return {{}, weight_gradient, bias_gradient, {}, {}, {}, {}};
    at::Tensor global = at::cat({bias_gradient, weight_gradient});
    if (sum != nullptr) (*sum)(global);
    const auto means = (global / count).chunk(2);
    const at::Tensor dx = at::addcmul(dy - means[0], x_hat, -means[1]).mul_(scale);
    return {to_images(dx, gradients[0]), weight_gradient, bias_gradient, {}, {}, {}, {}};
  }
};

}  // namespace

BatchNorm::BatchNorm(std::int64_t channels, double epsilon, double momentum)
    : weight_(register_parameter("weight", at::ones({channels}))),
      bias_(register_parameter("bias", at::zeros({channels}))),
      running_mean_(register_buffer("running_mean", at::zeros({channels}))),
      running_var_(register_buffer("running_var", at::ones({channels}))),
      num_batches_tracked_(register_buffer("num_batches_tracked", at::zeros({}, at::kLong))),
      epsilon_(epsilon),
      momentum_(momentum) {}

at::Tensor BatchNorm::forward_fused(torch::nn::Conv2dImpl* convolution, const at::Tensor& images,
                                    const at::Tensor& residual, bool relu) {
  const bool uses_kernels = is_training() && !sum_ && weight_.scalar_type() == at::kFloat &&
                            kernels::are_used(images.device());
  at::Tensor x = images;
  at::Tensor omitted_bias;
  if (uses_kernels && convolution != nullptr &&
      convolution->bias.scalar_type() == images.scalar_type()) {
    x = convolve_without_bias(*convolution, images);
    omitted_bias = convolution->bias;
  } else if (convolution != nullptr) {
    x = convolve(*convolution, images);
  }
  if (uses_kernels && kernels::supports_batch_norm(x, residual)) {
    return kernels::batch_norm({weight_, bias_, running_mean_, running_var_, num_batches_tracked_,
                                epsilon_, momentum_, omitted_bias},
                               x, residual, relu);
  }
  if (omitted_bias.defined()) x = x + omitted_bias.view({1, -1, 1, 1});  // no kernel adds it
  at::Tensor y = normalize(x);
  if (residual.defined()) y = y + residual;
  return relu ? at::relu(y) : y;
}

at::Tensor BatchNorm::normalize(const at::Tensor& x) {
  const bool sums_imprecisely = x.is_cpu() && x.scalar_type() == at::kFloat;
  // For a single row, LibTorch's running variance is NaN.
  const bool is_one_row = x.numel() == x.size(1);
  if (is_training() && (sum_ || sums_imprecisely || is_one_row)) {
    return forward_with_batch_statistics(x);
  }
  if (is_training()) num_batches_tracked_.add_(1);
  return at::batch_norm(x, weight_, bias_, running_mean_, running_var_, is_training(), momentum_,
                        epsilon_, /*cudnn_enabled=*/true);
}

at::Tensor BatchNorm::forward_with_batch_statistics(const at::Tensor& x) {
  at::Tensor x_hat;
  at::Tensor inverse_std;
  at::Tensor count;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor rows = to_rows(x);
    const std::int64_t local_count = rows.size(0);
    const std::int64_t channels = rows.size(1);
    // Squared deviations from the local mean are precise in fp32; the sums are combined in fp64.
    const at::Tensor local_mean = rows.sum(0) / std::max<std::int64_t>(local_count, 1);
    const at::Tensor centred = rows - local_mean;
    const at::Tensor mean_64 = local_mean.to(at::kDouble);
    at::Tensor sums = at::cat({mean_64 * local_count,
                               (centred * centred).sum(0) + mean_64 * mean_64 * local_count,
                               at::full({1}, local_count, mean_64.options())});
    if (sum_) sum_(sums);
    count = sums[2 * channels];  // remains on the device, because reading it would synchronise
    const at::Tensor mean = sums.narrow(0, 0, channels) / count;
    const at::Tensor variance =
        (sums.narrow(0, channels, channels) / count - mean * mean).clamp_min(0);
    inverse_std = (variance + epsilon_).rsqrt().to(at::kFloat);
    x_hat = at::addcmul(((mean_64 - mean) * inverse_std).to(at::kFloat), centred, inverse_std);
    running_mean_.lerp_(mean.to(at::kFloat), momentum_);
    running_var_.lerp_((variance * (count / (count - 1).clamp_min(1))).to(at::kFloat), momentum_);
    num_batches_tracked_.add_(1);
  }
  return NormalizedRows::apply(x, weight_, bias_, x_hat, inverse_std, count,
                               sum_ ? &sum_ : nullptr);
}

}  // namespace mnist_train::models
