// Depthwise convolution of channels_last images [N,H,W,C] with weights [C,K,K]. With stride d and
// padding p, and zeros outside the images,
//     y[n,i,j,c] = sum over r, s of x[n,d*i+r-p,d*j+s-p,c] * w[c,r,s]
//     dx[n,i,j,c] = sum over r, s of dy[n,(i+p-r)/d,(j+p-s)/d,c] * w[c,r,s], if d divides both
//     dw[c,r,s] = sum over n, i, j of dy[n,i,j,c] * x[n,d*i+r-p,d*j+s-p,c].
// Source: torch.nn.Conv2d with as many groups as channels.

constexpr unsigned kTileChannels = 64;  // at most, see row_tiles.cu
constexpr unsigned kMaxElements = 25;   // of a kernel

/// Sizes of the images whose pixels are the rows of a RowTile, and of the images that kernels read.
struct DepthwiseSizes {
  int height, width;
  int read_height, read_width;
  int stride, padding;
};

/// The pixel that corresponds to a row, and the index of its image.
struct RowPosition {
  __device__ RowPosition(int64 row, const DepthwiseSizes& sizes) {
    const auto index = static_cast<unsigned>(row);
    const auto width = static_cast<unsigned>(sizes.width);
    const auto height = static_cast<unsigned>(sizes.height);
    x = static_cast<int>(index % width);
    y = static_cast<int>(index / width % height);
    image = index / width / height;
  }

  int x, y;
  int64 image;
};

/// Returns the coordinate that an element of the kernel reads for a coordinate of the output or, if
/// `is_gradient`, of the input; -1 if there is none.
template <bool is_gradient>
__device__ inline int read_coordinate(int coordinate, int element, const DepthwiseSizes& sizes,
                                      int size) {
  const int scaled = is_gradient ? coordinate + sizes.padding - element
                                 : coordinate * sizes.stride + element - sizes.padding;
  if (scaled < 0 || (is_gradient && scaled % sizes.stride != 0)) return -1;
  const int found = is_gradient ? scaled / sizes.stride : scaled;
  return found < size ? found : -1;
}

/// Weights of a block's tile: [kernel elements, channels].
__device__ inline float* weights_of_tile() {
  __shared__ float weights[kMaxElements * kTileChannels];
  return weights;
}

/// Writes the output or, if `is_gradient`, the gradient of the input.
template <class T, int size, int kernel, bool is_gradient>
__device__ inline void convolve_depthwise(const RowTile<size>& tile, const T* read,
                                          const T* weights, const DepthwiseSizes& sizes,
                                          T* written) {
  constexpr unsigned kElements = kernel * kernel;
  float* const of_tile = weights_of_tile();
  for (unsigned i = threadIdx.x; i < kElements * tile.channels; i += blockDim.x) {
    of_tile[i % kElements * kTileChannels + i / kElements] =
        to_float(weights[tile.begin * kElements + i]);
  }
  __syncthreads();
  const float* const own = of_tile + (tile.channel - tile.begin);
  for (int64 row = tile.row; row < tile.rows; row += tile.step) {
    const RowPosition position(row, sizes);
    float sums[size] = {};
    UNROLL for (int r = 0; r < kernel; ++r) {
      const int y = read_coordinate<is_gradient>(position.y, r, sizes, sizes.read_height);
      UNROLL for (int s = 0; s < kernel; ++s) {
        const int x = read_coordinate<is_gradient>(position.x, s, sizes, sizes.read_width);
        if (y < 0 || x < 0) continue;
        const int64 at = (position.image * sizes.read_height + y) * sizes.read_width + x;
        const auto pack = load<size>(read + tile.offset(at));
        for (int i = 0; i < size; ++i) {
          sums[i] =
              fmaf(to_float(pack.values[i]), own[(r * kernel + s) * kTileChannels + i], sums[i]);
        }
      }
    }
    Pack<T, size> out;
    for (int i = 0; i < size; ++i) out.values[i] = from_float<T>(sums[i]);
    store(written + tile.offset(row), out);
  }
}

template <class T, int size>
__device__ inline void depthwise(const RowTile<size>& tile, const T* read, const T* weights,
                                 const DepthwiseSizes& sizes, int kernel, int is_gradient,
                                 T* written) {
  if (kernel == 3 && is_gradient == 0) {
    convolve_depthwise<T, size, 3, false>(tile, read, weights, sizes, written);
  } else if (kernel == 3) {
    convolve_depthwise<T, size, 3, true>(tile, read, weights, sizes, written);
  } else if (is_gradient == 0) {
    convolve_depthwise<T, size, 5, false>(tile, read, weights, sizes, written);
  } else {
    convolve_depthwise<T, size, 5, true>(tile, read, weights, sizes, written);
  }
}

/// Writes row `blockIdx.x % kernel` of the weight gradient. `partial_sums` is [blocks per tile,
/// kernel, kernel, channels]; `arrived` has one counter per tile and row.
template <class T, int size, int kernel>
__device__ inline void sum_depthwise(const RowTile<size>& tile, const T* x, const T* dy,
                                     const DepthwiseSizes& sizes, T* gradient, float* partial_sums,
                                     unsigned* arrived) {
  const int r = static_cast<int>(blockIdx.x % kernel);
  float own[kernel][size] = {};
  for (int64 row = tile.row; row < tile.rows; row += tile.step) {
    const RowPosition position(row, sizes);
    const int y = read_coordinate<false>(position.y, r, sizes, sizes.read_height);
    if (y < 0) continue;
    const auto of_output = load<size>(dy + tile.offset(row));
    UNROLL for (int s = 0; s < kernel; ++s) {
      const int column = read_coordinate<false>(position.x, s, sizes, sizes.read_width);
      if (column < 0) continue;
      const int64 at = (position.image * sizes.read_height + y) * sizes.read_width + column;
      const auto pack = load<size>(x + tile.offset(at));
      for (int i = 0; i < size; ++i) {
        own[s][i] = fmaf(to_float(pack.values[i]), to_float(of_output.values[i]), own[s][i]);
      }
    }
  }
  const auto partial = [&](unsigned block, int s, unsigned channel) {
    return ((static_cast<int64>(block) * kernel + r) * kernel + s) * tile.stride + tile.begin +
           channel;
  };
  for (int s = 0; s < kernel; ++s) {
    const float sum = sums_of_block(tile, own[s]);
    if (threadIdx.x < tile.channels) partial_sums[partial(tile.block, s, threadIdx.x)] = sum;
  }
  if (!is_last_block(arrived + tile.number * kernel + r, tile.blocks)) return;
  for (int s = 0; s < kernel; ++s) {
    const float total = sum_by_channel(
        parts_of_sums<float>(), tile.blocks, tile.channels,
        [&](unsigned block, unsigned channel) { return partial_sums[partial(block, s, channel)]; });
    if (threadIdx.x < tile.channels) {
      gradient[((tile.begin + threadIdx.x) * kernel + r) * kernel + s] = from_float<T>(total);
    }
  }
}

template <class T, int size>
__device__ inline void depthwise_weights(int64 rows, int64 channels, int tiles, int kernel,
                                         const T* x, const T* dy, const DepthwiseSizes& sizes,
                                         T* gradient, float* partial_sums, unsigned* arrived) {
  const RowTile<size> tile(rows, channels, tiles, static_cast<unsigned>(kernel));
  if (kernel == 3) {
    sum_depthwise<T, size, 3>(tile, x, dy, sizes, gradient, partial_sums, arrived);
  } else {
    sum_depthwise<T, size, 5>(tile, x, dy, sizes, gradient, partial_sums, arrived);
  }
}

#define DEPTHWISE(suffix, T, size)                                                                 \
  extern "C" __global__ __launch_bounds__(kTiledThreads) void depthwise_##suffix(                  \
      const T* read, const T* weights, int64 rows, int64 channels, int tiles, int packed,          \
      int height, int width, int read_height, int read_width, int stride, int padding, int kernel, \
      int is_gradient, T* written) {                                                               \
    const DepthwiseSizes sizes{height, width, read_height, read_width, stride, padding};           \
    CALL_PACKED(depthwise, T, size, read, weights, sizes, kernel, is_gradient, written);           \
  }                                                                                                \
  EXPORT_KERNEL(depthwise_##suffix)
FOR_EACH_TYPE(DEPTHWISE)

#define DEPTHWISE_WEIGHTS(suffix, T, size)                                                       \
  extern "C" __global__ __launch_bounds__(kTiledThreads) void depthwise_weights_##suffix(        \
      const T* x, const T* dy, int64 rows, int64 channels, int tiles, int packed, int height,    \
      int width, int read_height, int read_width, int stride, int padding, int kernel,           \
      T* gradient, float* partial_sums, unsigned* arrived) {                                     \
    const DepthwiseSizes sizes{height, width, read_height, read_width, stride, padding};         \
    packed != 0 ? depthwise_weights<T, size>(rows, channels, tiles, kernel, x, dy, sizes,        \
                                             gradient, partial_sums, arrived)                    \
                : depthwise_weights<T, 1>(rows, channels, tiles, kernel, x, dy, sizes, gradient, \
                                          partial_sums, arrived);                                \
  }                                                                                              \
  EXPORT_KERNEL(depthwise_weights_##suffix)
FOR_EACH_TYPE(DEPTHWISE_WEIGHTS)
