// Batch norm of rows of channels, which is what channels_last images are, in training, with what
// often stands behind it: the sum with a shortcut, and a ReLU. With mean and variance of a channel
// over N rows,
//     x_hat = (x - mean) / sqrt(variance + epsilon)        y = relu(weight * x_hat + bias +
//     residual)
// and with g = dy where y > 0, which is also the gradient of the residual, otherwise 0,
//     d bias = sum g    d weight = sum g * x_hat
//     d x = weight / sqrt(variance + epsilon) * (g - d bias / N - x_hat * d weight / N).
// The convolution in front may leave its bias b out of x: x - mean and the variance, so y, are what
// they are with it, and only the mean that the running one moves towards is mean + b. The gradient
// of b is the sum of d x over the N rows, which is exactly 0, as sum x_hat = 0 and sum g = d bias.
// Source: torch.nn.BatchNorm2d; Ioffe and Szegedy, "Batch Normalization" (2015). Squares are taken
// about a value of the same rows, and merged by Chan, Golub and LeVeque, "Updating formulae and a
// pairwise algorithm for computing sample variances" (1979), so that a variance keeps its digits.

/// Writes mean and 1 / sqrt(variance + epsilon) of each channel to `statistics` [2, channels],
/// moves the running statistics by `momentum` towards those of the batch, and counts the batch.
/// `convolution_bias` [channels] is what x lacks, null where it lacks nothing. `partial_sums` is
/// [blocks of a tile, channels, 2], and `arrived` has a counter for each tile.
template <class T, int size>
__device__ inline void batch_norm_statistics(const T* x, const T* convolution_bias, int64 rows,
                                             int64 channels, int tiles, float epsilon,
                                             float momentum, float* statistics, float* running_mean,
                                             float* running_var, int64* batches,
                                             ChannelSums* partial_sums, unsigned* arrived) {
  const RowTile<size> tile(rows, channels, tiles);
  ChannelSums own[size];
  float shift[size];
  for (int i = 0; i < size; ++i) own[i] = {0, 0};
  for (int i = 0; i < size; ++i) shift[i] = to_float(x[tile.place(tile.first_row()) + i]);
  for_each_row<4>(
      tile, [&](int64 row) { return *reinterpret_cast<const Pack<T, size>*>(x + tile.place(row)); },
      [&](int64, const Pack<T, size>& pack) {
        for (int i = 0; i < size; ++i) {
          const float distance = to_float(pack.values[i]) - shift[i];
          own[i] = {own[i].first + distance, fmaf(distance, distance, own[i].second)};
        }
      });
  const ChannelSums sums = sums_of_block(tile, own);
  const RowsOfBlocks rows_of(tile);
  const int64 channel = tile.begin + threadIdx.x;
  if (threadIdx.x < tile.channels) {
    const float mean_distance = sums.first / rows_of.of(tile.block);
    partial_sums[tile.block * channels + channel] = {
        to_float(x[tile.first_row() * channels + channel]) + mean_distance,
        sums.second - sums.first * mean_distance};
  }
  if (!is_last_block(arrived + tile.number, tile.blocks)) return;
  const ChannelSums* means = partial_sums + tile.begin;  // with the sums of squares about them
  const ChannelSums total =
      sum_by_channel(parts_of_sums<ChannelSums>(), tile.blocks, tile.channels,
                     [&](unsigned block, unsigned of_tile) {
                       const ChannelSums partial = means[block * channels + of_tile];
                       const float distance = partial.first - means[of_tile].first;
                       const float weighted = rows_of.of(block) * distance;
                       return ChannelSums{weighted, fmaf(weighted, distance, partial.second)};
                     });
  if (tile.number == 0 && threadIdx.x == 0) *batches += 1;
  if (threadIdx.x >= tile.channels) return;
  const float count = static_cast<float>(rows);
  const float mean_distance = total.first / count;
  const float mean = means[threadIdx.x].first + mean_distance;
  const float squares = total.second - total.first * mean_distance;
  const float variance = squares < 0 ? 0.0F : squares / count;  // a NaN stays a NaN
  statistics[channel] = mean;
  statistics[channels + channel] = rsqrtf(variance + epsilon);
  const float left_out = convolution_bias == nullptr ? 0.0F : to_float(convolution_bias[channel]);
  running_mean[channel] += momentum * (mean + left_out - running_mean[channel]);
  const float unbiased = variance * (count / static_cast<float>(rows - 1));
  running_var[channel] += momentum * (unbiased - running_var[channel]);
}

/// What a thread knows of its channels.
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

  /// The forward and the backward pass call it, and get the same bits.
  __device__ float of(float x, int i) const { return fmaf(x - mean[i], scale[i], bias[i]); }

  float mean[size];
  float inverse_std[size];
  float scale[size];
  float bias[size];
};

/// `residual` is null where there is none.
template <class T, int size>
__device__ inline void batch_norm(const T* x, const T* residual, const float* statistics,
                                  const float* weights, const float* biases, int64 rows,
                                  int64 channels, int tiles, int relu, T* y) {
  using Values = Pack<T, size>;
  struct Read {
    Values x;
    Values residual;
  };
  const RowTile<size> tile(rows, channels, tiles);
  const Normalization<size> normalized(tile, statistics, weights, biases);
  for_each_row<2>(
      tile,
      [&](int64 row) {
        Read read{*reinterpret_cast<const Values*>(x + tile.place(row)), {}};
        if (residual != nullptr) {
          read.residual = *reinterpret_cast<const Values*>(residual + tile.place(row));
        }
        return read;
      },
      [&](int64 row, const Read& read) {
        Values out;
        for (int i = 0; i < size; ++i) {
          float value = normalized.of(to_float(read.x.values[i]), i);
          if (residual != nullptr) value += to_float(read.residual.values[i]);
          if (relu != 0 && value <= 0) value = 0;  // a NaN stays a NaN
          out.values[i] = from_float<T>(value);
        }
        *reinterpret_cast<Values*>(y + tile.place(row)) = out;
      });
}

extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_statistics_f32(
    const float* x, const float* convolution_bias, int64 rows, int64 channels, int tiles,
    int packed, float epsilon, float momentum, float* statistics, float* running_mean,
    float* running_var, int64* batches, ChannelSums* partial_sums, unsigned* arrived) {
  packed != 0 ? batch_norm_statistics<float, 4>(x, convolution_bias, rows, channels, tiles, epsilon,
                                                momentum, statistics, running_mean, running_var,
                                                batches, partial_sums, arrived)
              : batch_norm_statistics<float, 1>(x, convolution_bias, rows, channels, tiles, epsilon,
                                                momentum, statistics, running_mean, running_var,
                                                batches, partial_sums, arrived);
}
EXPORT_KERNEL(batch_norm_statistics_f32)

extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_statistics_bf16(
    const bf16* x, const bf16* convolution_bias, int64 rows, int64 channels, int tiles, int packed,
    float epsilon, float momentum, float* statistics, float* running_mean, float* running_var,
    int64* batches, ChannelSums* partial_sums, unsigned* arrived) {
  packed != 0 ? batch_norm_statistics<bf16, 8>(x, convolution_bias, rows, channels, tiles, epsilon,
                                               momentum, statistics, running_mean, running_var,
                                               batches, partial_sums, arrived)
              : batch_norm_statistics<bf16, 1>(x, convolution_bias, rows, channels, tiles, epsilon,
                                               momentum, statistics, running_mean, running_var,
                                               batches, partial_sums, arrived);
}
EXPORT_KERNEL(batch_norm_statistics_bf16)

extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_f32(
    const float* x, const float* residual, const float* statistics, const float* weights,
    const float* biases, int64 rows, int64 channels, int tiles, int packed, int relu, float* y) {
  packed != 0 ? batch_norm<float, 4>(x, residual, statistics, weights, biases, rows, channels,
                                     tiles, relu, y)
              : batch_norm<float, 1>(x, residual, statistics, weights, biases, rows, channels,
                                     tiles, relu, y);
}
EXPORT_KERNEL(batch_norm_f32)

extern "C" __global__ __launch_bounds__(kTiledThreads) void batch_norm_bf16(
    const bf16* x, const bf16* residual, const float* statistics, const float* weights,
    const float* biases, int64 rows, int64 channels, int tiles, int packed, int relu, bf16* y) {
  packed != 0 ? batch_norm<bf16, 8>(x, residual, statistics, weights, biases, rows, channels, tiles,
                                    relu, y)
              : batch_norm<bf16, 1>(x, residual, statistics, weights, biases, rows, channels, tiles,
                                    relu, y);
}
EXPORT_KERNEL(batch_norm_bf16)
