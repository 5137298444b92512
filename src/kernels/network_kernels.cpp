#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <vector>

#include "kernels/launch.h"
#include "kernels/operations.h"

/// Network and loss kernels: launches, and checks before first use.
namespace mnist_train::kernels {

bool can_softmax_loss(const at::Tensor& logits) {
  return logits.dim() == 2 && logits.is_contiguous() && is_f32_or_bf16(logits);
}

void softmax_loss(const at::Tensor& logits, const Targets& targets, double smoothing, double scale,
                  const at::Tensor& gradient, const at::Tensor& sums) {
  const std::int64_t samples = logits.size(0);
  const unsigned blocks = blocks_for(samples * kWarp);
  const at::Tensor partial_sums = at::empty({blocks, 2}, sums.options());
  launch(name_for("softmax_loss", logits.scalar_type()), {blocks, kThreads}, logits, targets.labels,
         targets.other_labels, targets.weights, samples, logits.size(1), smoothing, scale, gradient,
         sums, partial_sums, arrived_blocks());
}

void check_softmax_loss(Agreement& agreement) {
  constexpr std::int64_t kSamples = 37;
  constexpr std::int64_t kClasses = 11;
  constexpr double kSmoothing = 0.1;
  constexpr double kScale = 0.25;
  const auto check = [&](at::ScalarType type, bool is_mixed) {
    const at::Tensor logits = known_values({kSamples, kClasses}).mul_(3).to(type);
    const at::Tensor labels = at::arange(kSamples, at::kLong).remainder(kClasses);
    const at::Tensor others = labels.flip(0);
    const at::Tensor weights =
        is_mixed ? known_values({kSamples}).abs() : at::ones({kSamples}, at::kFloat);
    const at::Tensor sums = agreement.here(at::zeros({3}));
    const at::Tensor here = agreement.here(logits);
    Targets given{agreement.here(labels)};
    if (is_mixed) {
      given.other_labels = agreement.here(others);
      given.weights = agreement.here(weights);
    }
    const at::Tensor gradient = at::empty_like(here);
    softmax_loss(here, given, kSmoothing, kScale, gradient, sums);

    const at::Tensor share = weights.unsqueeze(1);
    const at::Tensor one_hot =
        at::one_hot(labels, kClasses) * share + at::one_hot(others, kClasses) * (1 - share);
    const at::Tensor targets = one_hot * (1 - kSmoothing) + kSmoothing / kClasses;
    const at::Tensor scores = logits.to(at::kFloat);
    const at::Tensor loss = -(targets * scores.log_softmax(1)).sum();
    const at::Tensor correct = one_hot.gather(1, logits.argmax(1, /*keepdim=*/true)).sum();
    agreement.add("sums", sums,
                  at::stack({loss, correct.to(at::kFloat), at::full({}, kSamples, at::kFloat)}),
                  at::kFloat);
    agreement.add("gradient", gradient, (scores.softmax(1) - targets) * kScale, type);
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool is_mixed : {false, true}) check(type, is_mixed);
  }
}

namespace {

constexpr at::MemoryFormat kChannelsLast = at::MemoryFormat::ChannelsLast;
constexpr unsigned kPoolThreads = 512;     // per block of the backward pass, at most
constexpr unsigned kMostPoolBlocks = 264;  // two per multiprocessor of an H100

bool is_planar(const at::Tensor& pooled) { return !pooled.is_contiguous(kChannelsLast); }

/// Returns the number of adjacent channels per thread: as many as fit in one access of up to 16
/// bytes, given the alignment of the tensors.
unsigned channels_per_thread(std::int64_t channels, const at::Tensor& values,
                             const at::Tensor& others) {
  const std::int64_t bytes = values.element_size();
  std::int64_t size = 16 / bytes;
  while (channels % size != 0 || !is_aligned(values, size * bytes) ||
         !is_aligned(others, size * bytes)) {
    size /= 2;
  }
  return static_cast<unsigned>(size);
}

at::MemoryFormat format_of_pooled(bool planar) {
  return planar ? at::MemoryFormat::Contiguous : kChannelsLast;
}

}  // namespace

bool can_relu_max_pool(const at::Tensor& x, const at::Tensor& bias) {
  return is_f32_or_bf16(x) && x.dim() == 4 && x.numel() > 0 &&
         x.numel() <= std::numeric_limits<int>::max() && std::min(x.size(2), x.size(3)) >= 2 &&
         (!bias.defined() || (bias.scalar_type() == x.scalar_type() && bias.is_contiguous() &&
                              bias.device() == x.device()));
}

PooledRelu relu_max_pool(const at::Tensor& images, const at::Tensor& bias, bool planar) {
  const at::Tensor x = images.contiguous(kChannelsLast);
  const std::vector<std::int64_t> sizes{x.size(0), x.size(1), x.size(2) / 2, x.size(3) / 2};
  PooledRelu pooled{at::empty(sizes, x.options().memory_format(format_of_pooled(planar))),
                    at::empty(sizes, x.options().dtype(at::kByte).memory_format(kChannelsLast))};
  const unsigned size = channels_per_thread(x.size(1), x, pooled.out);
  launch(name_for("relu_max_pool", x.scalar_type()),
         {blocks_for(pooled.out.numel() / size), kThreads}, x, bias, as_int(x.size(0)),
         as_int(x.size(2)), as_int(x.size(3)), as_int(x.size(1)), is_planar(pooled.out),
         as_int(size), pooled.out, pooled.choice);
  return pooled;
}

ReluMaxPoolGradients relu_max_pool_gradients(const at::Tensor& of_output, const at::Tensor& choice,
                                             std::int64_t height, std::int64_t width, bool planar,
                                             bool needs_bias) {
  const at::Tensor gradient = of_output.contiguous(format_of_pooled(planar));
  ReluMaxPoolGradients found;
  found.x = at::empty({gradient.size(0), gradient.size(1), height, width},
                      gradient.options().memory_format(kChannelsLast));
  const at::Tensor& into = found.x;
  const unsigned size = channels_per_thread(into.size(1), gradient, into);
  const auto groups = static_cast<unsigned>(into.size(1)) / size;
  const unsigned rows = std::max(kPoolThreads / groups, 1U);
  const unsigned threads = (std::min(rows * groups, kPoolThreads) + kWarp - 1) / kWarp * kWarp;
  const std::int64_t windows = into.size(0) * ((height + 1) / 2) * ((width + 1) / 2);
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>(ceil_divide(windows, rows), kMostPoolBlocks));
  at::Tensor partial_sums;
  if (needs_bias) {
    found.bias = at::empty({into.size(1)}, into.options());
    partial_sums = at::empty({blocks, into.size(1)}, into.options().dtype(at::kFloat));
  }
  launch(name_for("relu_max_pool_backward", into.scalar_type()), {blocks, threads}, gradient,
         choice, as_int(into.size(0)), as_int(height), as_int(width), as_int(into.size(1)),
         is_planar(gradient), as_int(size), into, found.bias, partial_sums, arrived_blocks());
  return found;
}

void check_relu_max_pool(Agreement& agreement) {
  constexpr std::int64_t kImages = 5;
  constexpr std::int64_t kSide = 7;
  const auto check = [&](at::ScalarType type, std::int64_t channels, bool planar) {
    const at::Tensor x = known_values({kImages, channels, kSide, kSide}).to(type);
    const at::Tensor bias = known_values({channels}).to(type);
    const at::Tensor gradient = known_values({kImages, channels, kSide / 2, kSide / 2}).to(type);
    const PooledRelu computed =
        relu_max_pool(agreement.here(x.contiguous(kChannelsLast)), agreement.here(bias), planar);
    const ReluMaxPoolGradients found =
        relu_max_pool_gradients(agreement.here(gradient.contiguous(format_of_pooled(planar))),
                                computed.choice, kSide, kSide, planar, /*needs_bias=*/true);

    const at::Tensor added = (x + bias.view({-1, 1, 1})).to(at::kFloat);
    const auto [pooled, indices] = at::max_pool2d_with_indices(added, 2);
    const at::Tensor of_pooled = gradient.to(at::kFloat) * pooled.gt(0);
    const at::Tensor of_x = at::max_pool2d_with_indices_backward(of_pooled, added, 2, 2, 0, 1,
                                                                 /*ceil_mode=*/false, indices);
    agreement.add("values", computed.out, pooled.clamp_min(0), type);
    agreement.add("gradient", found.x, of_x, type);
    agreement.add("gradient of the bias", found.bias, of_x.sum({0, 2, 3}), type);
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t channels : {5, 10, 12, 64}) {
      for (const bool planar : {false, true}) check(type, channels, planar);
    }
  }
}

namespace {

constexpr std::int64_t kTiledThreads = 512;  // per block, as in gpu/row_tiles.cu
constexpr std::int64_t kTileChannels = 64;   // per block, at most

/// Returns whether there are enough arrival counters for the tiles of this many channels.
bool has_few_tiles(std::int64_t channels) {
  return ceil_divide(channels, kTileChannels) <= kArrivedBlocks;
}

/// Division of a tensor into rows, channel tiles and blocks; see gpu/row_tiles.cu.
struct RowTiles {
  /// Loads several adjacent channels at once if all tensors allow it.
  RowTiles(const at::Tensor& x, std::initializer_list<at::Tensor> others)
      : rows(x.numel() / x.size(1)), channels(x.size(1)) {
    constexpr std::int64_t kBytes = 16;
    std::int64_t size = kBytes / x.element_size();
    packed = channels % size == 0 && is_aligned(x, kBytes) &&
             std::all_of(others.begin(), others.end(),
                         [](const at::Tensor& other) { return is_aligned(other, kBytes); });
    if (!packed) size = 1;
    const std::int64_t groups = channels / size;
    const std::int64_t tile_count = ceil_divide(groups, kTileChannels / size);
    tiles = as_int(tile_count);
    row_slots = kTiledThreads / ceil_divide(groups, tile_count);
  }

  /// Returns the number of blocks per tile: at most `most` over all tiles, with at least
  /// `rows_of_thread` rows per thread.
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
  std::int64_t row_slots = 0;  // rows that a block processes at once
};

// Sums need few blocks, because the last block adds up their results, and enough rows per thread.
constexpr std::int64_t kSumBlocks = 132;
constexpr std::int64_t kSumRows = 4;
constexpr std::int64_t kMapBlocks = 528;
constexpr std::int64_t kMapRows = 2;

at::MemoryFormat format_of(const at::Tensor& x) {
  return x.dim() == 4 ? kChannelsLast : at::MemoryFormat::Contiguous;
}

at::Tensor empty_in_rows(const at::Tensor& like) {
  return at::empty(like.sizes(), like.options().memory_format(format_of(like)));
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
  at::Tensor y = empty_in_rows(x);
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
  const at::Tensor dy = gradient.contiguous(format_of(x));
  const bool cuts_y = batch.relu && batch.y.defined();
  const bool cuts_x = batch.relu && !batch.y.defined();
  BatchNormGradients found{needs_x ? empty_in_rows(x) : at::Tensor(), at::empty_like(batch.weight),
                           at::empty_like(batch.bias), cuts_y ? empty_in_rows(x) : dy};
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

/// Compares the kernels with LibTorch's operations; `adds`: with a residual.
void check_batch_norm_case(at::ScalarType type, std::int64_t channels, bool adds,
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
  // The kernel masks the gradient by the sign of the rounded output.
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
      for (const bool adds : {true, false}) check_batch_norm_case(type, channels, adds, agreement);
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
  // A batch has few rows, so use as many blocks as an H100 runs at once.
  const std::int64_t blocks = tiles.blocks(kSumBlocks, /*rows_of_thread=*/1);
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

namespace {

/// Writes the output of a depthwise convolution for x or, if `is_gradient`, the gradient of x for
/// the gradient of the output.
void launch_depthwise(const Depthwise& layer, const at::Tensor& read, const at::Tensor& weight,
                      bool is_gradient, const at::Tensor& written) {
  const RowTiles tiles(written, {read});
  launch(name_for("depthwise", written.scalar_type()),
         tiles.grid(tiles.blocks(kMapBlocks, kMapRows)), read, weight, tiles.rows, tiles.channels,
         tiles.tiles, tiles.packed, as_int(written.size(2)), as_int(written.size(3)),
         as_int(read.size(2)), as_int(read.size(3)), as_int(layer.stride), as_int(layer.padding),
         as_int(layer.kernel), is_gradient, written);
}

}  // namespace

bool can_convolve(const Depthwise& layer, const at::Tensor& x, const at::Tensor& weight) {
  constexpr std::int64_t kMaxChannels =
      kArrivedBlocks / 5 * kTileChannels;  // one counter per tile and kernel row
  return is_f32_or_bf16(x) && x.dim() == 4 && x.numel() > 0 &&
         x.numel() <= std::numeric_limits<int>::max() && x.size(1) <= kMaxChannels &&
         weight.scalar_type() == x.scalar_type() && weight.is_contiguous() &&
         (layer.kernel == 3 || layer.kernel == 5) && layer.padding < layer.kernel &&
         std::min(x.size(2), x.size(3)) + 2 * layer.padding >= layer.kernel;
}

at::Tensor convolve(const Depthwise& layer, const at::Tensor& x, const at::Tensor& weight) {
  const auto size_of = [&](std::int64_t size) {
    return (size + 2 * layer.padding - layer.kernel) / layer.stride + 1;
  };
  at::Tensor y = at::empty({x.size(0), x.size(1), size_of(x.size(2)), size_of(x.size(3))},
                           x.options().memory_format(kChannelsLast));
  launch_depthwise(layer, x, weight, /*is_gradient=*/false, y);
  return y;
}

DepthwiseGradients convolution_gradients(const Depthwise& layer, const at::Tensor& x,
                                         const at::Tensor& weight, const at::Tensor& gradient,
                                         bool needs_x, bool needs_weight) {
  const at::Tensor dy = gradient.contiguous(kChannelsLast);
  DepthwiseGradients found;
  if (needs_x) {
    found.x = empty_in_rows(x);
    launch_depthwise(layer, dy, weight, /*is_gradient=*/true, found.x);
  }
  if (!needs_weight) return found;
  found.weight = at::empty(weight.sizes(), weight.options());
  const RowTiles tiles(dy, {x});
  const std::int64_t blocks = tiles.blocks(kSumBlocks, kSumRows);
  const at::Tensor partial_sums =
      at::empty({blocks, layer.kernel, layer.kernel, x.size(1)}, x.options().dtype(at::kFloat));
  launch(name_for("depthwise_weights", x.scalar_type()), tiles.grid(blocks * layer.kernel), x, dy,
         tiles.rows, tiles.channels, tiles.tiles, tiles.packed, as_int(dy.size(2)),
         as_int(dy.size(3)), as_int(x.size(2)), as_int(x.size(3)), as_int(layer.stride),
         as_int(layer.padding), as_int(layer.kernel), found.weight, partial_sums, arrived_blocks());
  return found;
}

void check_depthwise(Agreement& agreement) {
  constexpr std::int64_t kImages = 7;
  const auto check = [&](at::ScalarType type, std::int64_t channels, const Depthwise& layer) {
    const at::Tensor x =
        known_values({kImages, channels, 13, 10}).to(type).contiguous(kChannelsLast);
    const at::Tensor weight = known_values({channels, 1, layer.kernel, layer.kernel}).to(type);
    const at::Tensor y = convolve(layer, agreement.here(x), agreement.here(weight));
    const at::Tensor dy = known_values(y.sizes()).to(type).contiguous(kChannelsLast);
    const DepthwiseGradients found =
        convolution_gradients(layer, agreement.here(x), agreement.here(weight), agreement.here(dy),
                              /*needs_x=*/true, /*needs_weight=*/true);

    const auto wide = [](const at::Tensor& tensor) { return tensor.to(at::kDouble); };
    const std::int64_t side = layer.stride;
    const std::int64_t around = layer.padding;
    const auto [of_x, of_weight, none] = at::convolution_backward(
        wide(dy), wide(x), wide(weight), at::OptionalIntArrayRef(), {side, side}, {around, around},
        {1, 1}, /*transposed=*/false, {0, 0}, channels, {true, true, false});
    agreement.add(
        "output", y,
        at::conv2d(wide(x), wide(weight), {}, {side, side}, {around, around}, {1, 1}, channels),
        type);
    agreement.add("gradient", found.x, of_x, type);
    agreement.add("gradient of the weight", found.weight, of_weight, type);
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t channels : {5, 72}) {
      for (const Depthwise& layer : {Depthwise{3, 1, 1}, Depthwise{3, 2, 1}, Depthwise{5, 2, 2}}) {
        check(type, channels, layer);
      }
    }
  }
}

}  // namespace mnist_train::kernels
