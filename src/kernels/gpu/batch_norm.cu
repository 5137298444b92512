// Training-mode batch norm of a matrix [rows, channels], such as channels_last images, fused with
// the residual and the ReLU that often follow it. With the mean and variance of a channel over N
// rows,
//     x_hat = (x - mean) / sqrt(variance + epsilon)
//     y = relu(weight * x_hat + bias + residual)
// and with g = 0 if there is a ReLU and y <= 0, else dy (g is also the residual's gradient),
//     d bias = sum g    d weight = sum g * x_hat
//     d x = weight / sqrt(variance + epsilon) * (g - d bias / N - x_hat * d weight / N).
// The preceding convolution may omit its bias b from x. This changes neither x - mean nor the
// variance, so y stays the same; only the running mean moves towards mean + b instead. The gradient
// of b is the sum of d x over the N rows, which is exactly 0: sum x_hat = 0 and sum g = d bias.
//
// To preserve the precision of the variance, squares are taken relative to a value from the same
// rows and merged as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
// computing sample variances" (1979). Sources: torch.nn.BatchNorm2d; Ioffe and Szegedy, "Batch
// Normalization" (2015).

/// Writes mean and 1 / sqrt(variance + epsilon) of each channel to `statistics` [2, channels],
/// moves the running statistics by `momentum` towards those of the batch, and increments `batches`.
/// `convolution_bias` [channels] is the bias omitted from x, or null. `partial_sums` is [blocks per
/// tile, channels, 2]; `arrived` has one counter per tile.
template <class T, int size>
__device__ inline void batch_norm_statistics(const RowTile<size>& tile, const T* x,
                                             const T* convolution_bias, float epsilon,
                                             float momentum, float* statistics, float* running_mean,
                                             float* running_var, int64* batches,
                                             ChannelSums* partial_sums, unsigned* arrived) {
  ChannelSums acc[size] = {};
  float shift[size];
  for (int i = 0; i < size; ++i) shift[i] = to_float(x[tile.offset(tile.first_row()) + i]);
  for_each_row<4>(
      tile, [&](int64 row) { return load<size>(x + tile.offset(row)); },
      [&](int64, const Pack<T, size>& pack) {
        for (int i = 0; i < size; ++i) {
          const float distance = to_float(pack.values[i]) - shift[i];
          acc[i] = {acc[i].first + distance, fmaf(distance, distance, acc[i].second)};
        }
      });
  const ChannelSums sums = block_sums(tile, acc);
  const BlockRows block_rows(tile);
  const int64 channel = tile.begin + threadIdx.x;
  if (threadIdx.x < tile.channels) {
    const float mean_distance = sums.first / block_rows.count(tile.block);
    partial_sums[tile.block * tile.stride + channel] = {
        to_float(x[tile.first_row() * tile.stride + channel]) + mean_distance,
        sums.second - sums.first * mean_distance};
  }
  if (!is_last_block(arrived + tile.index, tile.blocks)) return;
  const ChannelSums* means = partial_sums + tile.begin;  // and sums of squared deviations
  const ChannelSums total =
      sum_by_channel(sum_parts<ChannelSums>(), tile.blocks, tile.channels,
                     [&](unsigned block, unsigned tile_channel) {
                       const ChannelSums partial = means[block * tile.stride + tile_channel];
                       const float distance = partial.first - means[tile_channel].first;
                       const float weighted = block_rows.count(block) * distance;
                       return ChannelSums{weighted, fmaf(weighted, distance, partial.second)};
                     });
  if (tile.index == 0 && threadIdx.x == 0) *batches += 1;
  if (threadIdx.x >= tile.channels) return;
  const float count = static_cast<float>(tile.rows);
  const float mean_distance = total.first / count;
  const float mean = means[threadIdx.x].first + mean_distance;
  const float squares = total.second - total.first * mean_distance;
  const float variance = squares < 0 ? 0.0F : squares / count;  // NaN stays NaN
  statistics[channel] = mean;
  statistics[tile.stride + channel] = rsqrtf(variance + epsilon);
  const float bias = convolution_bias == nullptr ? 0.0F : to_float(convolution_bias[channel]);
  running_mean[channel] += momentum * (mean + bias - running_mean[channel]);
  const float unbiased = variance * (count / static_cast<float>(tile.rows - 1));
  running_var[channel] += momentum * (unbiased - running_var[channel]);
}

/// Statistics and parameters of a thread's channels.
template <int size>
struct Normalization {
  __device__ Normalization(const RowTile<size>& tile, const float* statistics, const float* weights,
                           const float* biases) {
    for (int i = 0; i < size && tile.has_rows(); ++i) {
      const int64 channel = tile.channel + static_cast<unsigned>(i);
      mean[i] = statistics[channel];
      inverse_std[i] = statistics[tile.stride + channel];
      scale[i] = weights[channel] * inverse_std[i];
      bias[i] = biases[channel];
    }
  }

  /// Shared by the forward and backward passes, so their results are bit-identical.
  __device__ float apply(float x, int i) const { return fmaf(x - mean[i], scale[i], bias[i]); }

  float mean[size];
  float inverse_std[size];
  float scale[size];
  float bias[size];
};

/// `residual` may be null.
template <class T, int size>
__device__ inline void batch_norm(const RowTile<size>& tile, const T* x, const T* residual,
                                  const float* statistics, const float* weights,
                                  const float* biases, int relu, T* y) {
  using Values = Pack<T, size>;
  struct Read {
    Values x;
    Values residual;
  };
  const Normalization<size> norm(tile, statistics, weights, biases);
  for_each_row<2>(
      tile,
      [&](int64 row) {
        Read read{load<size>(x + tile.offset(row)), {}};
        if (residual != nullptr) read.residual = load<size>(residual + tile.offset(row));
        return read;
      },
      [&](int64 row, const Read& read) {
        Values out;
        for (int i = 0; i < size; ++i) {
          float value = norm.apply(to_float(read.x.values[i]), i);
          if (residual != nullptr) value += to_float(read.residual.values[i]);
          if (relu != 0 && value <= 0) value = 0;  // NaN stays NaN
          out.values[i] = from_float<T>(value);
        }
        store(y + tile.offset(row), out);
      });
}

/// Writes the gradients of weights and biases. With a ReLU and no residual, `mask_from_x` is set
/// and the sign of y is computed from x. With a ReLU and a residual, the sign is read from `y`, and
/// g, which is also the residual's gradient, is written to `residual_gradient`; `y` is null in all
/// other cases. `convolution_bias_gradient` is null unless a bias was omitted from x.
template <class T, int size>
__device__ inline void batch_norm_sums(const RowTile<size>& tile, const T* x, const T* dy,
                                       const T* y, const float* statistics, const float* weights,
                                       const float* biases, int mask_from_x, T* residual_gradient,
                                       float* weight_gradient, float* bias_gradient,
                                       T* convolution_bias_gradient, ChannelSums* partial_sums,
                                       unsigned* arrived) {
  using Values = Pack<T, size>;
  struct Read {
    Values x;
    Values dy;
    Values y;
  };
  const Normalization<size> norm(tile, statistics, weights, biases);
  ChannelSums acc[size] = {};
  for_each_row<2>(
      tile,
      [&](int64 row) {
        Read read{load<size>(x + tile.offset(row)), load<size>(dy + tile.offset(row)), {}};
        if (y != nullptr) read.y = load<size>(y + tile.offset(row));
        return read;
      },
      [&](int64 row, Read& read) {
        for (int i = 0; i < size; ++i) {
          const float value = to_float(read.x.values[i]);
          const bool is_masked = y != nullptr ? to_float(read.y.values[i]) <= 0
                                              : mask_from_x != 0 && norm.apply(value, i) <= 0;
          if (is_masked) read.dy.values[i] = T{};
          const float gradient = to_float(read.dy.values[i]);
          acc[i] = {acc[i].first + gradient, fmaf(gradient, value - norm.mean[i], acc[i].second)};
        }
        if (y != nullptr) store(residual_gradient + tile.offset(row), read.dy);
      });
  const ChannelSums sums = block_sums(tile, acc);
  const int64 channel = tile.begin + threadIdx.x;
  if (threadIdx.x < tile.channels) partial_sums[tile.block * tile.stride + channel] = sums;
  if (!is_last_block(arrived + tile.index, tile.blocks)) return;
  const ChannelSums total =
      sum_by_channel(sum_parts<ChannelSums>(), tile.blocks, tile.channels,
                     [&](unsigned block, unsigned tile_channel) {
                       return partial_sums[block * tile.stride + tile.begin + tile_channel];
                     });
  if (threadIdx.x >= tile.channels) return;
  bias_gradient[channel] = total.first;
  weight_gradient[channel] = total.second * statistics[tile.stride + channel];
  if (convolution_bias_gradient != nullptr) convolution_bias_gradient[channel] = T{};
}

/// `gradients` is g or, with `mask_from_x`, dy, to which the kernel applies the ReLU's mask.
template <class T, int size>
__device__ inline void batch_norm_gradient(const RowTile<size>& tile, const T* x,
                                           const T* gradients, const float* statistics,
                                           const float* weights, const float* biases,
                                           const float* weight_gradient, const float* bias_gradient,
                                           int mask_from_x, T* dx) {
  using Values = Pack<T, size>;
  struct Read {
    Values x;
    Values gradient;
  };
  const Normalization<size> norm(tile, statistics, weights, biases);
  float mean_gradient[size];
  float slope[size];  // coefficient of mean - x in the gradient
  for (int i = 0; i < size && tile.has_rows(); ++i) {
    const int64 channel = tile.channel + static_cast<unsigned>(i);
    const float count = static_cast<float>(tile.rows);
    mean_gradient[i] = bias_gradient[channel] / count;
    slope[i] = weight_gradient[channel] / count * norm.inverse_std[i];
  }
  for_each_row<2>(
      tile,
      [&](int64 row) {
        return Read{load<size>(x + tile.offset(row)), load<size>(gradients + tile.offset(row))};
      },
      [&](int64 row, const Read& read) {
        Values out;
        for (int i = 0; i < size; ++i) {
          const float value = to_float(read.x.values[i]);
          const bool is_masked = mask_from_x != 0 && norm.apply(value, i) <= 0;
          const float gradient = is_masked ? 0.0F : to_float(read.gradient.values[i]);
          const float centred = gradient - mean_gradient[i];
          out.values[i] =
              from_float<T>(norm.scale[i] * fmaf(norm.mean[i] - value, slope[i], centred));
        }
        store(dx + tile.offset(row), out);
      });
}

#define BATCH_NORM_STATISTICS(suffix, T, size)                                                   \
  extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_statistics_##suffix(    \
      const T* x, const T* convolution_bias, int64 rows, int64 channels, int tiles, int packed,  \
      float epsilon, float momentum, float* statistics, float* running_mean, float* running_var, \
      int64* batches, ChannelSums* partial_sums, unsigned* arrived) {                            \
    CALL_PACKED(batch_norm_statistics, T, size, x, convolution_bias, epsilon, momentum,          \
                statistics, running_mean, running_var, batches, partial_sums, arrived);          \
  }                                                                                              \
  EXPORT_KERNEL(batch_norm_statistics_##suffix)
FOR_EACH_TYPE(BATCH_NORM_STATISTICS)

#define BATCH_NORM(suffix, T, size)                                                             \
  extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_##suffix(              \
      const T* x, const T* residual, const float* statistics, const float* weights,             \
      const float* biases, int64 rows, int64 channels, int tiles, int packed, int relu, T* y) { \
    CALL_PACKED(batch_norm, T, size, x, residual, statistics, weights, biases, relu, y);        \
  }                                                                                             \
  EXPORT_KERNEL(batch_norm_##suffix)
FOR_EACH_TYPE_BY_FOUR(BATCH_NORM)

#define BATCH_NORM_SUMS(suffix, T, size)                                                       \
  extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_sums_##suffix(        \
      const T* x, const T* dy, const T* y, const float* statistics, const float* weights,      \
      const float* biases, int64 rows, int64 channels, int tiles, int packed, int mask_from_x, \
      T* residual_gradient, float* weight_gradient, float* bias_gradient,                      \
      T* convolution_bias_gradient, ChannelSums* partial_sums, unsigned* arrived) {            \
    CALL_PACKED(batch_norm_sums, T, size, x, dy, y, statistics, weights, biases, mask_from_x,  \
                residual_gradient, weight_gradient, bias_gradient, convolution_bias_gradient,  \
                partial_sums, arrived);                                                        \
  }                                                                                            \
  EXPORT_KERNEL(batch_norm_sums_##suffix)
FOR_EACH_TYPE(BATCH_NORM_SUMS)

#define BATCH_NORM_GRADIENT(suffix, T, size)                                                     \
  extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_gradient_##suffix(      \
      const T* x, const T* gradients, const float* statistics, const float* weights,             \
      const float* biases, const float* weight_gradient, const float* bias_gradient, int64 rows, \
      int64 channels, int tiles, int packed, int mask_from_x, T* dx) {                           \
    CALL_PACKED(batch_norm_gradient, T, size, x, gradients, statistics, weights, biases,         \
                weight_gradient, bias_gradient, mask_from_x, dx);                                \
  }                                                                                              \
  EXPORT_KERNEL(batch_norm_gradient_##suffix)
FOR_EACH_TYPE_BY_FOUR(BATCH_NORM_GRADIENT)
