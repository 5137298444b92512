// The backward pass of batch_norm.cu, where its mathematics is.

/// Writes the gradients of weights and biases. Where there is a ReLU and nothing was added before
/// it, `cuts_by_x` says so, and where y <= 0 is computed from x. Otherwise `y`, null without a
/// ReLU, says where, and the gradient behind the ReLU, which is that of the residual, is written to
/// `residual_gradient`. That of the bias which a convolution left out of x is written where
/// `convolution_bias_gradient` is not null.
template <class T, int size>
__device__ inline void batch_norm_sums(const T* x, const T* dy, const T* y, const float* statistics,
                                       const float* weights, const float* biases, int64 rows,
                                       int64 channels, int tiles, int cuts_by_x,
                                       T* residual_gradient, float* weight_gradient,
                                       float* bias_gradient, T* convolution_bias_gradient,
                                       ChannelSums* partial_sums, unsigned* arrived) {
  using Values = Pack<T, size>;
  struct Read {
    Values x;
    Values dy;
    Values y;
  };
  const RowTile<size> tile(rows, channels, tiles);
  const Normalization<size> normalized(tile, statistics, weights, biases);
  ChannelSums own[size];
  for (int i = 0; i < size; ++i) own[i] = {0, 0};
  for_each_row<2>(
      tile,
      [&](int64 row) {
        Read read{*reinterpret_cast<const Values*>(x + tile.place(row)),
                  *reinterpret_cast<const Values*>(dy + tile.place(row)),
                  {}};
        if (y != nullptr) read.y = *reinterpret_cast<const Values*>(y + tile.place(row));
        return read;
      },
      [&](int64 row, Read& read) {
        for (int i = 0; i < size; ++i) {
          const float value = to_float(read.x.values[i]);
          const bool is_cut = y != nullptr ? to_float(read.y.values[i]) <= 0
                                           : cuts_by_x != 0 && normalized.of(value, i) <= 0;
          if (is_cut) read.dy.values[i] = from_float<T>(0);
          const float gradient = to_float(read.dy.values[i]);
          own[i] = {own[i].first + gradient,
                    fmaf(gradient, value - normalized.mean[i], own[i].second)};
        }
        if (y != nullptr) {
          *reinterpret_cast<Values*>(residual_gradient + tile.place(row)) = read.dy;
        }
      });
  const ChannelSums sums = sums_of_block(tile, own);
  const int64 channel = tile.begin + threadIdx.x;
  if (threadIdx.x < tile.channels) partial_sums[tile.block * channels + channel] = sums;
  if (!is_last_block(arrived + tile.number, tile.blocks)) return;
  const ChannelSums total =
      sum_by_channel(parts_of_sums<ChannelSums>(), tile.blocks, tile.channels,
                     [&](unsigned block, unsigned of_tile) {
                       return partial_sums[block * channels + tile.begin + of_tile];
                     });
  if (threadIdx.x >= tile.channels) return;
  bias_gradient[channel] = total.first;
  weight_gradient[channel] = total.second * statistics[channels + channel];
  if (convolution_bias_gradient != nullptr) convolution_bias_gradient[channel] = from_float<T>(0);
}

/// `gradients` is dy, already cut by a ReLU where something was added before it. Where `cuts_by_x`
/// says that nothing was, it is cut here.
template <class T, int size>
__device__ inline void batch_norm_gradient(const T* x, const T* gradients, const float* statistics,
                                           const float* weights, const float* biases,
                                           const float* weight_gradient, const float* bias_gradient,
                                           int64 rows, int64 channels, int tiles, int cuts_by_x,
                                           T* dx) {
  using Values = Pack<T, size>;
  struct Read {
    Values x;
    Values gradient;
  };
  const RowTile<size> tile(rows, channels, tiles);
  const Normalization<size> normalized(tile, statistics, weights, biases);
  float mean_gradient[size];
  float slope[size];  // of the gradient along x - mean
  for (int i = 0; i < size && tile.has_rows(); ++i) {
    const int64 channel = tile.channel + static_cast<unsigned>(i);
    const float count = static_cast<float>(rows);
    mean_gradient[i] = bias_gradient[channel] / count;
    slope[i] = weight_gradient[channel] / count * normalized.inverse_std[i];
  }
  for_each_row<2>(
      tile,
      [&](int64 row) {
        return Read{*reinterpret_cast<const Values*>(x + tile.place(row)),
                    *reinterpret_cast<const Values*>(gradients + tile.place(row))};
      },
      [&](int64 row, const Read& read) {
        Values out;
        for (int i = 0; i < size; ++i) {
          const float value = to_float(read.x.values[i]);
          const bool is_cut = cuts_by_x != 0 && normalized.of(value, i) <= 0;
          const float gradient = is_cut ? 0.0F : to_float(read.gradient.values[i]);
          const float centred = gradient - mean_gradient[i];
          out.values[i] = from_float<T>(normalized.scale[i] *
                                        fmaf(normalized.mean[i] - value, slope[i], centred));
        }
        *reinterpret_cast<Values*>(dx + tile.place(row)) = out;
      });
}

extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_sums_f32(
    const float* x, const float* dy, const float* y, const float* statistics, const float* weights,
    const float* biases, int64 rows, int64 channels, int tiles, int packed, int cuts_by_x,
    float* residual_gradient, float* weight_gradient, float* bias_gradient,
    float* convolution_bias_gradient, ChannelSums* partial_sums, unsigned* arrived) {
  packed != 0
      ? batch_norm_sums<float, 4>(x, dy, y, statistics, weights, biases, rows, channels, tiles,
                                  cuts_by_x, residual_gradient, weight_gradient, bias_gradient,
                                  convolution_bias_gradient, partial_sums, arrived)
      : batch_norm_sums<float, 1>(x, dy, y, statistics, weights, biases, rows, channels, tiles,
                                  cuts_by_x, residual_gradient, weight_gradient, bias_gradient,
                                  convolution_bias_gradient, partial_sums, arrived);
}
EXPORT_KERNEL(batch_norm_sums_f32)

extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_sums_bf16(
    const bf16* x, const bf16* dy, const bf16* y, const float* statistics, const float* weights,
    const float* biases, int64 rows, int64 channels, int tiles, int packed, int cuts_by_x,
    bf16* residual_gradient, float* weight_gradient, float* bias_gradient,
    bf16* convolution_bias_gradient, ChannelSums* partial_sums, unsigned* arrived) {
  packed != 0
      ? batch_norm_sums<bf16, 8>(x, dy, y, statistics, weights, biases, rows, channels, tiles,
                                 cuts_by_x, residual_gradient, weight_gradient, bias_gradient,
                                 convolution_bias_gradient, partial_sums, arrived)
      : batch_norm_sums<bf16, 1>(x, dy, y, statistics, weights, biases, rows, channels, tiles,
                                 cuts_by_x, residual_gradient, weight_gradient, bias_gradient,
                                 convolution_bias_gradient, partial_sums, arrived);
}
EXPORT_KERNEL(batch_norm_sums_bf16)

extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_gradient_f32(
    const float* x, const float* gradients, const float* statistics, const float* weights,
    const float* biases, const float* weight_gradient, const float* bias_gradient, int64 rows,
    int64 channels, int tiles, int packed, int cuts_by_x, float* dx) {
  packed != 0
      ? batch_norm_gradient<float, 4>(x, gradients, statistics, weights, biases, weight_gradient,
                                      bias_gradient, rows, channels, tiles, cuts_by_x, dx)
      : batch_norm_gradient<float, 1>(x, gradients, statistics, weights, biases, weight_gradient,
                                      bias_gradient, rows, channels, tiles, cuts_by_x, dx);
}
EXPORT_KERNEL(batch_norm_gradient_f32)

extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_gradient_bf16(
    const bf16* x, const bf16* gradients, const float* statistics, const float* weights,
    const float* biases, const float* weight_gradient, const float* bias_gradient, int64 rows,
    int64 channels, int tiles, int packed, int cuts_by_x, bf16* dx) {
  packed != 0
      ? batch_norm_gradient<bf16, 8>(x, gradients, statistics, weights, biases, weight_gradient,
                                     bias_gradient, rows, channels, tiles, cuts_by_x, dx)
      : batch_norm_gradient<bf16, 1>(x, gradients, statistics, weights, biases, weight_gradient,
                                     bias_gradient, rows, channels, tiles, cuts_by_x, dx);
}
EXPORT_KERNEL(batch_norm_gradient_bf16)
