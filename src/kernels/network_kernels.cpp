#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/launch.h"
#include "kernels/operations.h"

/// Launches the loss kernel, and the network's kernels as functions of autograd.
namespace mnist_train::kernels {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool supports_softmax_loss(const at::Tensor& logits) {
  return logits.dim() == 2 && logits.is_contiguous() && is_f32_or_bf16(logits);
}

void softmax_loss(const at::Tensor& logits, const Targets& targets, double smoothing, double scale,
                  const at::Tensor& gradient, const at::Tensor& sums) {
  const std::int64_t samples = logits.size(0);
  const unsigned blocks = blocks_for(samples * kWarp);
  const at::Tensor partial_sums = at::empty({blocks, 2}, sums.options());
  launch(name_for("softmax_loss", logits.scalar_type()), {blocks, kThreads}, logits, targets.labels,
         targets.other_labels, targets.weights, samples, logits.size(1), smoothing, scale, gradient,
         sums, partial_sums, arrival_counters());
}

namespace {

constexpr at::MemoryFormat kChannelsLast = at::MemoryFormat::ChannelsLast;
constexpr unsigned kPoolThreads = 512;    // per block in the backward pass, at most
constexpr unsigned kMaxPoolBlocks = 264;  // two per multiprocessor of an H100

bool is_planar(const at::Tensor& pooled) { return !pooled.is_contiguous(kChannelsLast); }

/// Returns the number of adjacent channels per thread: as many as one memory access can hold.
unsigned channels_per_thread(std::int64_t channels, const at::Tensor& values,
                             const at::Tensor& others) {
  const std::int64_t bytes = values.element_size();
  return static_cast<unsigned>(access_bytes(channels * bytes, {values, others}) / bytes);
}

at::MemoryFormat pooled_format(bool planar) {
  return planar ? at::MemoryFormat::Contiguous : kChannelsLast;
}

}  // namespace

bool supports_relu_max_pool(const at::Tensor& x, const at::Tensor& bias) {
  return is_f32_or_bf16(x) && x.dim() == 4 && x.numel() > 0 &&
         x.numel() <= std::numeric_limits<int>::max() && std::min(x.size(2), x.size(3)) >= 2 &&
         (!bias.defined() || (bias.scalar_type() == x.scalar_type() && bias.is_contiguous() &&
                              bias.device() == x.device()));
}

namespace {

class ReluMaxPool : public torch::autograd::Function<ReluMaxPool> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& images,
                            const std::optional<at::Tensor>& bias, bool planar) {
    const at::Tensor x = images.contiguous(kChannelsLast);
    const std::vector<std::int64_t> sizes{x.size(0), x.size(1), x.size(2) / 2, x.size(3) / 2};
    at::Tensor out = at::empty(sizes, x.options().memory_format(pooled_format(planar)));
    // Positions of the maxima; see gpu/relu_max_pool.cu.
    const at::Tensor argmax =
        at::empty(sizes, x.options().dtype(at::kByte).memory_format(kChannelsLast));
    const unsigned size = channels_per_thread(x.size(1), x, out);
    launch(name_for("relu_max_pool", x.scalar_type()), {blocks_for(out.numel() / size), kThreads},
           x, *bias, as_int(x.size(0)), as_int(x.size(2)), as_int(x.size(3)), as_int(x.size(1)),
           is_planar(out), as_int(size), out, argmax);
    context->save_for_backward({argmax});
    context->saved_data["height"] = x.size(2);
    context->saved_data["width"] = x.size(3);
    context->saved_data["has_bias"] = bias->defined();
    context->saved_data["planar"] = planar;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor gradient =
        gradients[0].contiguous(pooled_format(context->saved_data["planar"].toBool()));
    const std::int64_t channels = gradient.size(1);
    const std::int64_t height = context->saved_data["height"].toInt();
    const std::int64_t width = context->saved_data["width"].toInt();
    const at::Tensor dx = at::empty({gradient.size(0), channels, height, width},
                                    gradient.options().memory_format(kChannelsLast));
    const unsigned size = channels_per_thread(channels, gradient, dx);
    const auto groups = static_cast<unsigned>(channels) / size;
    const unsigned rows = std::max(kPoolThreads / groups, 1U);
    const unsigned threads = (std::min(rows * groups, kPoolThreads) + kWarp - 1) / kWarp * kWarp;
    const std::int64_t windows = dx.size(0) * ((height + 1) / 2) * ((width + 1) / 2);
    const auto blocks =
        static_cast<unsigned>(std::min<std::int64_t>(ceil_divide(windows, rows), kMaxPoolBlocks));
    at::Tensor dbias;
    at::Tensor partial_sums;
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(1)) {
      dbias = at::empty({channels}, dx.options());
      partial_sums = at::empty({blocks, channels}, dx.options().dtype(at::kFloat));
    }
    launch(name_for("relu_max_pool_backward", dx.scalar_type()), {blocks, threads}, gradient,
           context->get_saved_variables()[0], as_int(dx.size(0)), as_int(height), as_int(width),
           as_int(channels), is_planar(gradient), as_int(size), dx, dbias, partial_sums,
           arrival_counters());
    return {dx, dbias, {}};
  }
};

}  // namespace

at::Tensor relu_max_pool(const at::Tensor& images, const at::Tensor& bias, bool planar) {
  return ReluMaxPool::apply(images, std::optional(bias), planar);
}

namespace {

constexpr std::int64_t kTiledThreads = 512;  // per block, as in gpu/row_tiles.cu
constexpr std::int64_t kTileChannels = 64;   // per block, at most

// Channels per thread and row in kernels of FOR_EACH_TYPE (wide) or FOR_EACH_TYPE_BY_FOUR (narrow).
constexpr std::int64_t kMaxPackBytes = 16;
constexpr std::int64_t kNarrowPack = 4;

std::int64_t wide_pack(const at::Tensor& x) { return kMaxPackBytes / x.element_size(); }

/// Returns whether there are enough arrival counters for the tiles of this many channels.
bool has_few_tiles(std::int64_t channels) {
  return ceil_divide(channels, kTileChannels) <= kArrivalCounters;
}

/// Division of a tensor into rows, channel tiles and blocks; see gpu/row_tiles.cu.
struct RowTiles {
  /// Loads `pack` adjacent channels at once if the alignment of all tensors allows it.
  RowTiles(const at::Tensor& x, std::initializer_list<at::Tensor> others, std::int64_t pack)
      : rows(x.numel() / x.size(1)), channels(x.size(1)) {
    const std::int64_t bytes = pack * x.element_size();
    packed = access_bytes(channels * x.element_size(), {x}) >= bytes &&
             access_bytes(kMaxPackBytes, others) >= bytes;
    const std::int64_t size = packed ? pack : 1;
    const std::int64_t groups = channels / size;
    const std::int64_t tile_count = ceil_divide(groups, kTileChannels / size);
    tiles = as_int(tile_count);
    row_slots = kTiledThreads / ceil_divide(groups, tile_count);
  }

  /// Returns the number of blocks per tile, so that all tiles together have at most `max_blocks`
  /// blocks and each thread has at least `min_rows_per_thread` rows, if possible.
  std::int64_t blocks(std::int64_t max_blocks, std::int64_t min_rows_per_thread) const {
    return std::max<std::int64_t>(
        std::min<std::int64_t>(rows / (row_slots * min_rows_per_thread), max_blocks / tiles), 1);
  }

  accelerator::Grid grid(std::int64_t blocks_per_tile) const {
    return {static_cast<unsigned>(blocks_per_tile * tiles), kTiledThreads};
  }

  std::int64_t rows;
  std::int64_t channels;
  int tiles = 0;
  bool packed = false;
  std::int64_t row_slots = 0;  // rows that a block processes at once
};

// Maximum blocks and minimum rows per thread. For sums, each multiprocessor of an H100 runs one
// block, because the last block adds up the results of all others; for maps, it runs two.
constexpr std::int64_t kSumBlocks = 132;
constexpr std::int64_t kSumRows = 4;
constexpr std::int64_t kMapBlocks = 264;
constexpr std::int64_t kMapRows = 2;

at::MemoryFormat row_format(const at::Tensor& x) {
  return x.dim() == 4 ? kChannelsLast : at::MemoryFormat::Contiguous;
}

at::Tensor empty_rows_like(const at::Tensor& like) {
  return at::empty(like.sizes(), like.options().memory_format(row_format(like)));
}

}  // namespace

bool supports_batch_norm(const at::Tensor& x, const at::Tensor& residual) {
  const auto is_in_rows = [&](const at::Tensor& tensor) {
    return is_f32_or_bf16(tensor) && (tensor.dim() == 2 || tensor.dim() == 4) &&
           tensor.is_contiguous(row_format(tensor));
  };
  if (!is_in_rows(x) || x.numel() < 2 * x.size(1) || !has_few_tiles(x.size(1))) return false;
  return !residual.defined() ||
         (is_in_rows(residual) && residual.scalar_type() == x.scalar_type() &&
          residual.sizes() == x.sizes() && residual.device() == x.device());
}

namespace {

class FusedBatchNorm : public torch::autograd::Function<FusedBatchNorm> {
 public:
  /// Autograd needs `weight`, `bias` and `convolution_bias` as arguments, although `layer` contains
  /// them; tensors that may be undefined must be optional.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias,
                            const std::optional<at::Tensor>& convolution_bias,
                            const std::optional<at::Tensor>& residual, bool relu,
                            const BatchNormParameters& layer) {
    at::Tensor y = empty_rows_like(x);
    const RowTiles tiles(x, {}, wide_pack(x));
    const std::int64_t blocks = tiles.blocks(kSumBlocks, kSumRows);
    // Mean and inverse standard deviation of each channel.
    const at::Tensor statistics = at::empty({2, x.size(1)}, weight.options());
    const at::Tensor partial_sums = at::empty({blocks, x.size(1), 2}, weight.options());
    launch(name_for("batch_norm_statistics", x.scalar_type()), tiles.grid(blocks), x,
           *convolution_bias, tiles.rows, tiles.channels, tiles.tiles, tiles.packed, layer.epsilon,
           layer.momentum, statistics, layer.running_mean, layer.running_var, layer.batches,
           partial_sums, arrival_counters());
    const RowTiles map(x, {y, *residual}, kNarrowPack);
    launch(name_for("batch_norm", x.scalar_type()), map.grid(map.blocks(kMapBlocks, kMapRows)), x,
           *residual, statistics, weight, bias, map.rows, map.channels, map.tiles, map.packed, relu,
           y);
    const bool needs_y = relu && residual->defined();
    context->save_for_backward({x, weight, bias, statistics, needs_y ? y : at::Tensor()});
    context->saved_data["relu"] = relu;
    context->saved_data["has_residual"] = residual->defined();
    context->saved_data["omits_bias"] = convolution_bias->defined();
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& bias = saved[2];
    const at::Tensor& statistics = saved[3];
    const at::Tensor& y = saved[4];  // defined only with both ReLU and residual
    const at::Tensor dy = gradients[0].contiguous(row_format(x));
    const bool mask_from_x = context->saved_data["relu"].toBool() && !y.defined();
    const bool needs_dx = context->needs_input_grad(0);
    const at::Tensor dx = needs_dx ? empty_rows_like(x) : at::Tensor();
    const at::Tensor dweight = at::empty_like(weight);
    const at::Tensor dbias = at::empty_like(bias);
    const at::Tensor dsum = y.defined() ? empty_rows_like(x) : dy;  // also the residual's gradient
    at::Tensor dconvolution_bias;                                   // zeros
    if (context->saved_data["omits_bias"].toBool()) {
      dconvolution_bias = at::empty({x.size(1)}, x.options());
    }
    const RowTiles tiles(x, {dy, y, dsum}, wide_pack(x));
    const std::int64_t blocks = tiles.blocks(kSumBlocks, kSumRows);
    const at::Tensor partial_sums = at::empty({blocks, x.size(1), 2}, statistics.options());
    launch(name_for("batch_norm_sums", x.scalar_type()), tiles.grid(blocks), x, dy, y, statistics,
           weight, bias, tiles.rows, tiles.channels, tiles.tiles, tiles.packed, mask_from_x, dsum,
           dweight, dbias, dconvolution_bias, partial_sums, arrival_counters());
    if (needs_dx) {
      const RowTiles map(x, {dsum, dx}, kNarrowPack);
      launch(name_for("batch_norm_gradient", x.scalar_type()),
             map.grid(map.blocks(kMapBlocks, kMapRows)), x, dsum, statistics, weight, bias, dweight,
             dbias, map.rows, map.channels, map.tiles, map.packed, mask_from_x, dx);
    }
    const bool has_residual = context->saved_data["has_residual"].toBool();
    return {dx, dweight, dbias, dconvolution_bias, has_residual ? dsum : at::Tensor(), {}, {}};
  }
};

}  // namespace

at::Tensor batch_norm(const BatchNormParameters& layer, const at::Tensor& x,
                      const at::Tensor& residual, bool relu) {
  return FusedBatchNorm::apply(x, layer.weight, layer.bias, std::optional(layer.convolution_bias),
                               std::optional(residual), relu, layer);
}

bool supports_linear_activation(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& bias) {
  const at::ScalarType type = x.scalar_type();
  return is_f32_or_bf16(x) && x.dim() == 2 && x.numel() > 0 && bias.defined() &&
         bias.scalar_type() == type && weight.scalar_type() == type &&
         has_few_tiles(weight.size(0));
}

namespace {

class LinearActivation : public torch::autograd::Function<LinearActivation> {
 public:
  /// `function` is a LinearFunction as an integer.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, std::int64_t function) {
    at::Tensor y = at::linear(x, weight, bias);
    static_cast<LinearFunction>(function) == LinearFunction::kTanh ? y.tanh_() : y.relu_();
    context->save_for_backward({x, weight, y});
    context->saved_data["function"] = function;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& y = saved[2];
    const auto function = static_cast<LinearFunction>(context->saved_data["function"].toInt());
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dlinear = at::empty_like(y);
    const at::Tensor dbias = at::empty({y.size(1)}, y.options());
    const RowTiles tiles(y, {dy, dlinear}, kNarrowPack);
    // A batch has few rows, so allow one row per thread, which occupies more multiprocessors.
    const std::int64_t blocks = tiles.blocks(kSumBlocks, /*min_rows_per_thread=*/1);
    const at::Tensor partial_sums = at::empty({blocks, y.size(1)}, y.options().dtype(at::kFloat));
    launch(name_for("linear_activation_gradient", y.scalar_type()), tiles.grid(blocks), y, dy,
           tiles.rows, tiles.channels, tiles.tiles, tiles.packed, function == LinearFunction::kTanh,
           dlinear, dbias, partial_sums, arrival_counters());
    at::Tensor dx;
    at::Tensor dweight;
    if (context->needs_input_grad(0)) dx = dlinear.mm(saved[1]);
    if (context->needs_input_grad(1)) dweight = dlinear.t().mm(saved[0]);
    return {dx, dweight, dbias, {}};
  }
};

}  // namespace

at::Tensor linear_activation(LinearFunction function, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& bias) {
  return LinearActivation::apply(x, weight, bias, static_cast<std::int64_t>(function));
}

namespace {

/// Launches a kernel over the pixels of `out` that reads pixels of `in`, its first tensor.
template <class... Arguments>
void launch_convolution(const char* name, const RowTiles& tiles, std::int64_t blocks,
                        const ChannelConvolution& layer, const at::Tensor& out,
                        const at::Tensor& in, const Arguments&... arguments) {
  launch(name_for(name, in.scalar_type()), tiles.grid(blocks), tiles.rows, tiles.channels,
         tiles.tiles, tiles.packed, as_int(out.size(2)), as_int(out.size(3)), as_int(in.size(2)),
         as_int(in.size(3)), as_int(layer.stride), as_int(layer.padding), as_int(layer.kernel), in,
         arguments...);
}

/// Writes the output of a depthwise convolution of `in` or, if `is_gradient`, the input gradient,
/// given the output gradient `in`.
void launch_depthwise(const ChannelConvolution& layer, const at::Tensor& in,
                      const at::Tensor& weight, bool is_gradient, const at::Tensor& out) {
  const RowTiles tiles(out, {in}, wide_pack(in));
  launch_convolution("depthwise", tiles, tiles.blocks(kMapBlocks, kMapRows), layer, out, in, weight,
                     is_gradient, out);
}

/// Writes the output for images with a single channel.
void launch_single_channel(const ChannelConvolution& layer, const at::Tensor& x,
                           const at::Tensor& weight, const at::Tensor& y) {
  const RowTiles tiles(y, {}, kNarrowPack);
  launch_convolution("single_channel", tiles, tiles.blocks(kMapBlocks, kMapRows), layer, y, x,
                     weight, y);
}

/// Returns the gradient of the weight.
at::Tensor convolution_weight_gradient(const ChannelConvolution& layer, const at::Tensor& x,
                                       const at::Tensor& dy, const at::Tensor& weight) {
  const bool single = x.size(1) < dy.size(1);
  const RowTiles tiles = single ? RowTiles(dy, {}, kNarrowPack) : RowTiles(dy, {x}, wide_pack(x));
  const std::int64_t blocks = tiles.blocks(kSumBlocks / layer.kernel, kSumRows);
  const at::Tensor gradient = at::empty(weight.sizes(), weight.options());
  const at::Tensor partial_sums =
      at::empty({blocks, layer.kernel, layer.kernel, dy.size(1)}, x.options().dtype(at::kFloat));
  launch_convolution(single ? "single_channel_weights" : "depthwise_weights", tiles,
                     blocks * layer.kernel, layer, dy, x, dy, gradient, partial_sums,
                     arrival_counters());
  return gradient;
}

}  // namespace

bool supports_convolution(const ChannelConvolution& layer, const at::Tensor& x,
                          const at::Tensor& weight) {
  constexpr std::int64_t kMaxChannels =
      kArrivalCounters / 5 * kTileChannels;  // one counter per tile and kernel row
  return is_f32_or_bf16(x) && x.dim() == 4 && x.numel() > 0 &&
         x.numel() <= std::numeric_limits<int>::max() && weight.size(0) <= kMaxChannels &&
         (x.size(1) == weight.size(0) || (x.size(1) == 1 && !x.requires_grad())) &&
         weight.scalar_type() == x.scalar_type() && weight.is_contiguous() &&
         (layer.kernel == 3 || layer.kernel == 5) && layer.padding < layer.kernel &&
         std::min(x.size(2), x.size(3)) + 2 * layer.padding >= layer.kernel;
}

namespace {

class ChannelConvolutionFunction : public torch::autograd::Function<ChannelConvolutionFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const ChannelConvolution& layer) {
    const auto out_size = [&](std::int64_t size) {
      return (size + 2 * layer.padding - layer.kernel) / layer.stride + 1;
    };
    at::Tensor y = at::empty({x.size(0), weight.size(0), out_size(x.size(2)), out_size(x.size(3))},
                             x.options().memory_format(kChannelsLast));
    if (x.size(1) == weight.size(0)) {
      launch_depthwise(layer, x, weight, /*is_gradient=*/false, y);
    } else {
      launch_single_channel(layer, x, weight, y);
    }
    context->save_for_backward({x, weight});
    context->saved_data["stride"] = layer.stride;
    context->saved_data["padding"] = layer.padding;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const ChannelConvolution layer{weight.size(2), context->saved_data["stride"].toInt(),
                                   context->saved_data["padding"].toInt()};
    const at::Tensor dy = gradients[0].contiguous(kChannelsLast);
    at::Tensor dx;
    if (context->needs_input_grad(0)) {
      dx = empty_rows_like(x);
      launch_depthwise(layer, dy, weight, /*is_gradient=*/true, dx);
    }
    at::Tensor dweight;
    if (context->needs_input_grad(1)) dweight = convolution_weight_gradient(layer, x, dy, weight);
    return {dx, dweight, {}};
  }
};

}  // namespace

at::Tensor convolve(const ChannelConvolution& layer, const at::Tensor& x,
                    const at::Tensor& weight) {
  return ChannelConvolutionFunction::apply(x, weight, layer);
}

}  // namespace mnist_train::kernels
