// Backward pass of the activation after a linear layer, z = x W^T + b and y = relu(z) or tanh(z):
//     dz = dy if y > 0 or y is NaN, otherwise 0           (ReLU)
//     dz = dy * (1 - y^2)                                 (tanh)
//     db = sum over the rows of dz, after dz is rounded to its type.
// The gradients of W and x are matrix products with dz. Sources: torch.nn.functional.linear,
// torch.relu and torch.tanh.

/// Writes dz to `gradient` and db to `bias_gradient`. `partial_sums` is [blocks per tile,
/// channels]; `arrived` has one counter per tile.
template <class T, int size>
__device__ inline void linear_activation_gradient(const RowTile<size>& tile, const T* y,
                                                  const T* dy, int is_tanh, T* gradient,
                                                  T* bias_gradient, float* partial_sums,
                                                  unsigned* arrived) {
  using Values = Pack<T, size>;
  struct Read {
    Values y;
    Values dy;
  };
  float acc[size] = {};
  for_each_row<4>(
      tile,
      [&](int64 row) {
        return Read{load<size>(y + tile.offset(row)), load<size>(dy + tile.offset(row))};
      },
      [&](int64 row, const Read& read) {
        Values out = read.dy;
        for (int i = 0; i < size; ++i) {
          const float value = to_float(read.y.values[i]);
          if (is_tanh != 0) {
            out.values[i] = from_float<T>(to_float(read.dy.values[i]) * (1 - value * value));
          } else if (value <= 0) {
            out.values[i] = T{};
          }
          acc[i] += to_float(out.values[i]);
        }
        store(gradient + tile.offset(row), out);
      });
  const float sum = block_sums(tile, acc);
  const int64 channel = tile.begin + threadIdx.x;
  if (threadIdx.x < tile.channels) partial_sums[tile.block * tile.stride + channel] = sum;
  if (!is_last_block(arrived + tile.index, tile.blocks)) return;
  const float total = sum_by_channel(
      sum_parts<float>(), tile.blocks, tile.channels, [&](unsigned block, unsigned tile_channel) {
        return partial_sums[block * tile.stride + tile.begin + tile_channel];
      });
  if (threadIdx.x < tile.channels) bias_gradient[channel] = from_float<T>(total);
}

#define LINEAR_ACTIVATION_GRADIENT(suffix, T, size)                                                \
  extern "C" __global__ __launch_bounds__(kTiledThreads) void linear_activation_gradient_##suffix( \
      const T* y, const T* dy, int64 rows, int64 channels, int tiles, int packed, int is_tanh,     \
      T* gradient, T* bias_gradient, float* partial_sums, unsigned* arrived) {                     \
    CALL_PACKED(linear_activation_gradient, T, size, y, dy, is_tanh, gradient, bias_gradient,      \
                partial_sums, arrived);                                                            \
  }                                                                                                \
  EXPORT_KERNEL(linear_activation_gradient_##suffix)
FOR_EACH_TYPE_BY_FOUR(LINEAR_ACTIVATION_GRADIENT)
