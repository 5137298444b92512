#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <initializer_list>

#include "accelerator/device.h"
#include "kernels/launch.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

namespace {

constexpr std::int64_t kTiledThreads = 512;  // of a block, as in gpu/row_tiles.cu
constexpr std::int64_t kTileChannels = 64;   // of a block, at most

/// Returns whether there are counters of arrived blocks for all tiles of this many channels.
bool has_few_tiles(std::int64_t channels) {
  return divided_up(channels, kTileChannels) <= kArrivedBlocks;
}

/// The division of tensors into rows, tiles of channels and blocks, see gpu/row_tiles.cu.
struct RowTiles {
  /// Several adjacent channels are loaded at once if all tensors allow it.
  RowTiles(const at::Tensor& x, std::initializer_list<at::Tensor> others)
      : rows(x.numel() / x.size(1)), channels(x.size(1)) {
    constexpr std::int64_t kBytes = 16;
    std::int64_t size = kBytes / x.element_size();
    packed = channels % size == 0 && is_aligned(x, kBytes) &&
             std::all_of(others.begin(), others.end(),
                         [](const at::Tensor& other) { return is_aligned(other, kBytes); });
    if (!packed) size = 1;
    const std::int64_t groups = channels / size;
    const std::int64_t tile_count = divided_up(groups, kTileChannels / size);
    tiles = as_int(tile_count);
    row_slots = kTiledThreads / divided_up(groups, tile_count);
  }

  /// Returns the number of blocks of a tile: `most` for all tiles, each with at least
  /// `rows_of_thread` rows for a thread.
  std::int64_t blocks(std::int64_t most, std::int64_t rows_of_thread) const {
    return std::max<std::int64_t>(
        std::min<std::int64_t>(rows / (row_slots * rows_of_thread), most / tiles), 1);
  }

  accelerator::Grid grid(std::int64_t blocks_of_tile) const {
    return {static_cast<unsigned>(blocks_of_tile * tiles), kTiledThreads};
  }

  std::int64_t rows;
  std::int64_t channels;
  int tiles = 0;
  bool packed = false;
  std::int64_t row_slots = 0;  // rows that a block takes at once
};

// Sums need few blocks, because the last one adds up their results, and enough rows per thread.
constexpr std::int64_t kSumBlocks = 132;
constexpr std::int64_t kSumRows = 4;
constexpr std::int64_t kMapBlocks = 528;
constexpr std::int64_t kMapRows = 2;

at::MemoryFormat format_of(const at::Tensor& x) {
  return x.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

// A batch has few rows, so there are as many blocks as an H100 runs at once, with at least one row
// per thread.
constexpr std::int64_t kGradientBlocks = 132;
constexpr std::int64_t kGradientRows = 1;

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
void check_case(at::ScalarType type, std::int64_t channels, bool adds, Agreement& agreement) {
  constexpr double kEpsilon = 1e-5;
  constexpr double kMomentum = 0.25;
  constexpr std::int64_t kRows = 1500;  // several blocks
  const at::Tensor x = (known_values({kRows, channels}) + 3).to(type);
  const at::Tensor residual = known_values({channels, kRows}).t().contiguous().to(type) * adds;
  const at::Tensor dy = known_values({kRows * channels}).flip(0).view_as(x).to(type);
  const at::Tensor weight = known_values({channels}) + 2;
  const at::Tensor bias = known_values({channels});
  const at::Tensor left_out = (known_values({channels}) - 2).to(type);
  const auto here = [&](const at::Tensor& host) { return agreement.here(host); };
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

void check_batch_norm(Agreement& agreement) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t channels : {5, 72}) {
      for (const bool adds : {true, false}) check_case(type, channels, adds, agreement);
    }
  }
}

bool can_linear_activation(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType type = x.scalar_type();
  return is_f32_or_bf16(x) && x.dim() == 2 && x.numel() > 0 && bias.defined() &&
         bias.scalar_type() == type && weight.scalar_type() == type &&
         has_few_tiles(weight.size(0));
}

LinearActivationGradients linear_activation_gradients(LinearFunction function, const at::Tensor& y,
                                                      const at::Tensor& gradient) {
  LinearActivationGradients found{at::empty_like(y), at::empty({y.size(1)}, y.options())};
  const RowTiles tiles(y, {gradient, found.linear});
  const std::int64_t blocks = tiles.blocks(kGradientBlocks, kGradientRows);
  const at::Tensor partial_sums = at::empty({blocks, y.size(1)}, y.options().dtype(at::kFloat));
  launch(name_for("linear_activation_gradient", y.scalar_type()), tiles.grid(blocks), y, gradient,
         tiles.rows, tiles.channels, tiles.tiles, tiles.packed, function == LinearFunction::kTanh,
         found.linear, found.bias, partial_sums, arrived_blocks());
  return found;
}

void check_linear_activation(Agreement& agreement) {
  constexpr std::int64_t kRows = 700;  // several blocks
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t channels : {5, 72}) {
      for (const LinearFunction function : {LinearFunction::kRelu, LinearFunction::kTanh}) {
        const at::Tensor values = known_values({kRows, channels}).to(type);
        const at::Tensor y = function == LinearFunction::kRelu ? values.clamp_min(0) : values;
        const at::Tensor dy = known_values({kRows * channels}).flip(0).view_as(y).to(type);
        const auto found =
            linear_activation_gradients(function, agreement.here(y), agreement.here(dy));

        const at::Tensor wide = y.to(at::kDouble);
        const at::Tensor slope =
            function == LinearFunction::kRelu ? wide.gt(0).to(at::kDouble) : 1 - wide.square();
        const at::Tensor gradient = (dy.to(at::kDouble) * slope).to(type);
        agreement.add("gradient", found.linear, gradient, type);
        agreement.add("gradient of the bias", found.bias, gradient.to(at::kDouble).sum(0), type);
      }
    }
  }
}

}  // namespace mnist_train::kernels
