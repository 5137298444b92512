#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>

#include "accelerator/device.h"
#include "kernels/launch.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

namespace {

// Sums need few blocks, because the last one adds up their results, and enough rows per thread.
constexpr std::int64_t kSumBlocks = 132;
constexpr std::int64_t kSumRows = 4;
constexpr std::int64_t kMapBlocks = 528;
constexpr std::int64_t kMapRows = 2;

at::MemoryFormat format_of(const at::Tensor& x) {
  return x.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

}  // namespace

bool can_normalize(const at::Tensor& x, const at::Tensor& residual) {
  const auto is_in_rows = [&](const at::Tensor& tensor) {
    return is_f32_or_bf16(tensor) && (tensor.dim() == 2 || tensor.dim() == 4) &&
           tensor.is_contiguous(format_of(tensor));
  };
  if (!is_in_rows(x) || x.numel() < 2 * x.size(1) || !has_few_tiles(x.size(1))) return false;
  return !residual.defined() ||
         (is_in_rows(residual) && residual.scalar_type() == x.scalar_type() &&
          residual.sizes() == x.sizes() && residual.device() == x.device());
}

at::Tensor batch_norm(const BatchNormParameters& layer, const at::Tensor& x,
                      const at::Tensor& residual, bool relu, const at::Tensor& statistics) {
  at::Tensor y = at::empty(x.sizes(), x.options().memory_format(format_of(x)));
  const RowTiles tiles(x, {y, residual});
  const std::int64_t blocks = tiles.blocks(kSumBlocks, kSumRows);
  const at::Tensor partial_sums = at::empty({blocks, x.size(1), 2}, statistics.options());
  launch(name_for("batch_norm_statistics", x.scalar_type()), tiles.grid(blocks), x,
         layer.convolution_bias, tiles.rows, tiles.channels, tiles.tiles, tiles.packed,
         layer.epsilon, layer.momentum, statistics, layer.running_mean, layer.running_var,
         layer.batches, partial_sums, arrived_blocks());
  launch(name_for("batch_norm", x.scalar_type()), tiles.grid(tiles.blocks(kMapBlocks, kMapRows)), x,
         residual, statistics, layer.weight, layer.bias, tiles.rows, tiles.channels, tiles.tiles,
         tiles.packed, relu, y);
  return y;
}

BatchNormGradients batch_norm_gradients(const NormalizedBatch& batch, const at::Tensor& gradient,
                                        bool needs_x) {
  const at::Tensor& x = batch.x;
  const auto like_x = [&x] {
    return at::empty(x.sizes(), x.options().memory_format(format_of(x)));
  };
  const at::Tensor dy = gradient.contiguous(format_of(x));
  const bool cuts_y = batch.relu && batch.y.defined();
  const bool cuts_x = batch.relu && !batch.y.defined();
  BatchNormGradients found{needs_x ? like_x() : at::Tensor(), at::empty_like(batch.weight),
                           at::empty_like(batch.bias), cuts_y ? like_x() : dy};
  if (batch.lacks_bias) found.convolution_bias = at::empty({x.size(1)}, x.options());
  const at::Tensor y = cuts_y ? batch.y : at::Tensor();
  const RowTiles tiles(x, {dy, y, found.x, found.residual});
  const std::int64_t blocks = tiles.blocks(kSumBlocks, kSumRows);
  const at::Tensor partial_sums = at::empty({blocks, x.size(1), 2}, batch.statistics.options());
  launch(name_for("batch_norm_sums", x.scalar_type()), tiles.grid(blocks), x, dy, y,
         batch.statistics, batch.weight, batch.bias, tiles.rows, tiles.channels, tiles.tiles,
         tiles.packed, cuts_x, found.residual, found.weight, found.bias, found.convolution_bias,
         partial_sums, arrived_blocks());
  if (!needs_x) return found;
  launch(name_for("batch_norm_gradient", x.scalar_type()),
         tiles.grid(tiles.blocks(kMapBlocks, kMapRows)), x, found.residual, batch.statistics,
         batch.weight, batch.bias, found.weight, found.bias, tiles.rows, tiles.channels,
         tiles.tiles, tiles.packed, cuts_x, found.x);
  return found;
}

namespace {

/// Compares the kernels with LibTorch's operations, with or without a residual.
void check_case(at::ScalarType type, std::int64_t channels, bool adds, at::Device device,
                Agreement& agreement) {
  constexpr double kEpsilon = 1e-5;
  constexpr double kMomentum = 0.25;
  constexpr std::int64_t kRows = 1500;  // several blocks
  const at::Tensor x = (known_values({kRows, channels}) + 3).to(type);
  const at::Tensor residual = known_values({channels, kRows}).t().contiguous().to(type) * adds;
  const at::Tensor dy = known_values({kRows * channels}).flip(0).view_as(x).to(type);
  const at::Tensor weight = known_values({channels}) + 2;
  const at::Tensor bias = known_values({channels});
  const at::Tensor left_out = (known_values({channels}) - 2).to(type);
  const auto here = [&](const at::Tensor& host) { return accelerator::to_device(host, device); };
  const BatchNormParameters layer{.weight = here(weight),
                                  .bias = here(bias),
                                  .running_mean = here(at::zeros({channels})),
                                  .running_var = here(at::ones({channels})),
                                  .batches = here(at::zeros({}, at::kLong)),
                                  .epsilon = kEpsilon,
                                  .momentum = kMomentum,
                                  .convolution_bias = here(left_out)};
  NormalizedBatch batch{.x = here(x),
                        .y = {},
                        .statistics = at::empty({2, channels}, layer.weight.options()),
                        .weight = layer.weight,
                        .bias = layer.bias,
                        .relu = true,
                        .lacks_bias = true};
  const at::Tensor y = batch_norm(layer, batch.x, adds ? here(residual) : at::Tensor(), batch.relu,
                                  batch.statistics);
  if (adds) batch.y = y;
  const BatchNormGradients found = batch_norm_gradients(batch, here(dy), /*needs_x=*/true);

  const at::Tensor wide = x.to(at::kDouble);
  const auto [variance, mean] = at::var_mean(wide, at::IntArrayRef{0}, /*unbiased=*/false);
  const at::Tensor inverse_std = (variance + kEpsilon).rsqrt();
  const at::Tensor x_hat = (wide - mean) * inverse_std;
  agreement.add("statistics", batch.statistics, at::stack({mean, inverse_std}), at::kFloat);
  agreement.add("running mean", layer.running_mean, (mean + left_out) * kMomentum, at::kFloat);
  agreement.add("running variance", layer.running_var,
                variance * (kMomentum * kRows / (kRows - 1)) + (1 - kMomentum), at::kFloat);
  agreement.add("batches", layer.batches, at::ones({}), at::kFloat);
  agreement.add("output", y, at::relu(x_hat * weight + bias + residual), type);
  // The kernel applies the ReLU to the gradient by the rounded output.
  const at::Tensor gradient = dy.to(at::kDouble) * accelerator::to_host(y).gt(0);
  const at::Tensor bias_gradient = gradient.sum(0);
  const at::Tensor weight_gradient = (gradient * x_hat).sum(0);
  if (adds) agreement.add("gradient of the residual", found.residual, gradient, type);
  agreement.add("gradient of the bias", found.bias, bias_gradient, at::kFloat);
  agreement.add("gradient of the weight", found.weight, weight_gradient, at::kFloat);
  agreement.add("gradient of the convolution's bias", found.convolution_bias, at::zeros({channels}),
                type);
  agreement.add(
      "gradient", found.x,
      (gradient - bias_gradient / kRows - x_hat * weight_gradient / kRows) * (inverse_std * weight),
      type);
}

}  // namespace

void check_batch_norm(at::Device device, Agreement& agreement) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t channels : {5, 72}) {
      for (const bool adds : {true, false}) check_case(type, channels, adds, device, agreement);
    }
  }
}

}  // namespace mnist_train::kernels
