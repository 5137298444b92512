// Convolution of channels_last images [N,H,W,C] with weights [C,K,K]: each output channel c reads
// one input channel. That is channel c in a depthwise convolution, or the only channel of
// single-channel images. With stride d and padding p, and zeros outside the images,
//     y[n,i,j,c] = sum over r, s of x[n,d*i+r-p,d*j+s-p,c] * w[c,r,s]
//     dx[n,i,j,c] = sum over r, s of dy[n,(i+p-r)/d,(j+p-s)/d,c] * w[c,r,s], if d divides both
//     dw[c,r,s] = sum over n, i, j of dy[n,i,j,c] * x[n,d*i+r-p,d*j+s-p,c].
// dx is computed only for depthwise convolutions. Source: torch.nn.Conv2d with as many groups as
// input channels.

constexpr unsigned kTileChannels = 64;  // at most; see row_tiles.cu
constexpr unsigned kMaxElements = 25;   // of a kernel

/// Sizes of the images whose pixels are the rows of a RowTile, and of the images read (`in_`).
struct ConvolutionSizes {
  int height, width;
  int in_height, in_width;
  int stride, padding;
};

/// The pixel that corresponds to a row, and the index of its image.
struct RowPosition {
  __device__ RowPosition(int64 row, const ConvolutionSizes& sizes) {
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
__device__ inline int input_coordinate(int coordinate, int element, const ConvolutionSizes& sizes,
                                       int size) {
  const int scaled = is_gradient ? coordinate + sizes.padding - element
                                 : coordinate * sizes.stride + element - sizes.padding;
  if (scaled < 0 || (is_gradient && scaled % sizes.stride != 0)) return -1;
  const int index = is_gradient ? scaled / sizes.stride : scaled;
  return index < size ? index : -1;
}

/// The input channel that an output channel reads: the one with the same index, or the only one.
enum class InputChannel { kSameChannel, kOnlyChannel };

template <int size, InputChannel input_channel, class T>
__device__ inline Pack<T, size> load_channels(const RowTile<size>& tile, const T* images,
                                              int64 pixel) {
  if constexpr (input_channel == InputChannel::kSameChannel) {
    return load<size>(images + tile.offset(pixel));
  } else {
    Pack<T, size> pack;
    for (int i = 0; i < size; ++i) pack.values[i] = images[pixel];
    return pack;
  }
}

/// Weights of a block's tile: [kernel elements, kTileChannels].
__device__ inline float* tile_weights() {
  __shared__ float weights[kMaxElements * kTileChannels];
  return weights;
}

/// Writes the output or, if `is_gradient`, the gradient of the input.
template <class T, int size, int kernel, InputChannel input_channel, bool is_gradient>
__device__ inline void convolve(const RowTile<size>& tile, const T* in, const T* weights,
                                const ConvolutionSizes& sizes, T* out) {
  constexpr unsigned kElements = kernel * kernel;
  float* const shared = tile_weights();
  for (unsigned i = threadIdx.x; i < kElements * tile.channels; i += blockDim.x) {
    shared[i % kElements * kTileChannels + i / kElements] =
        to_float(weights[tile.begin * kElements + i]);
  }
  __syncthreads();
  const float* const w = shared + (tile.channel - tile.begin);
  for (int64 row = tile.row; row < tile.rows; row += tile.step) {
    const RowPosition position(row, sizes);
    float sums[size] = {};
    UNROLL for (int r = 0; r < kernel; ++r) {
      const int y = input_coordinate<is_gradient>(position.y, r, sizes, sizes.in_height);
      UNROLL for (int s = 0; s < kernel; ++s) {
        const int x = input_coordinate<is_gradient>(position.x, s, sizes, sizes.in_width);
        if (y < 0 || x < 0) continue;
        const int64 pixel = (position.image * sizes.in_height + y) * sizes.in_width + x;
        const auto pack = load_channels<size, input_channel>(tile, in, pixel);
        for (int i = 0; i < size; ++i) {
          sums[i] =
              fmaf(to_float(pack.values[i]), w[(r * kernel + s) * kTileChannels + i], sums[i]);
        }
      }
    }
    Pack<T, size> result;
    for (int i = 0; i < size; ++i) result.values[i] = from_float<T>(sums[i]);
    store(out + tile.offset(row), result);
  }
}

template <class T, int size>
__device__ inline void depthwise(const RowTile<size>& tile, const T* in, const T* weights,
                                 const ConvolutionSizes& sizes, int kernel, int is_gradient,
                                 T* out) {
  constexpr InputChannel kInputChannel = InputChannel::kSameChannel;
  if (kernel == 3 && is_gradient == 0) {
    convolve<T, size, 3, kInputChannel, false>(tile, in, weights, sizes, out);
  } else if (kernel == 3) {
    convolve<T, size, 3, kInputChannel, true>(tile, in, weights, sizes, out);
  } else if (is_gradient == 0) {
    convolve<T, size, 5, kInputChannel, false>(tile, in, weights, sizes, out);
  } else {
    convolve<T, size, 5, kInputChannel, true>(tile, in, weights, sizes, out);
  }
}

template <class T, int size>
__device__ inline void single_channel(const RowTile<size>& tile, const T* in, const T* weights,
                                      const ConvolutionSizes& sizes, int kernel, T* out) {
  constexpr InputChannel kInputChannel = InputChannel::kOnlyChannel;
  if (kernel == 3) {
    convolve<T, size, 3, kInputChannel, false>(tile, in, weights, sizes, out);
  } else {
    convolve<T, size, 5, kInputChannel, false>(tile, in, weights, sizes, out);
  }
}

/// Writes row `blockIdx.x % kernel` of the weight gradient. `partial_sums` is [blocks per tile,
/// kernel, kernel, channels]; `arrived` has one counter per tile and row.
template <class T, int size, int kernel, InputChannel input_channel>
__device__ inline void sum_weights(const RowTile<size>& tile, const T* x, const T* dy,
                                   const ConvolutionSizes& sizes, T* gradient, float* partial_sums,
                                   unsigned* arrived) {
  struct Read {
    Pack<T, size> dy;
    Pack<T, size> x[kernel];
  };
  const int r = static_cast<int>(blockIdx.x % kernel);
  float acc[kernel][size] = {};
  for_each_row<1>(
      tile,
      [&](int64 row) {
        Read read{load<size>(dy + tile.offset(row)), {}};
        const RowPosition position(row, sizes);
        const int y = input_coordinate<false>(position.y, r, sizes, sizes.in_height);
        const int64 line = (position.image * sizes.in_height + y) * sizes.in_width;
        UNROLL for (int s = 0; s < kernel; ++s) {
          const int column = input_coordinate<false>(position.x, s, sizes, sizes.in_width);
          if (y >= 0 && column >= 0) {
            read.x[s] = load_channels<size, input_channel>(tile, x, line + column);
          }
        }
        return read;
      },
      [&](int64, const Read& read) {
        UNROLL for (int s = 0; s < kernel; ++s) {
          for (int i = 0; i < size; ++i) {
            acc[s][i] = fmaf(to_float(read.x[s].values[i]), to_float(read.dy.values[i]), acc[s][i]);
          }
        }
      });
  const auto partial = [&](unsigned block, unsigned s, unsigned channel) {
    return ((static_cast<int64>(block) * kernel + r) * kernel + s) * tile.stride + tile.begin +
           channel;
  };
  for (unsigned s = 0; s < kernel; ++s) {
    const float sum = block_sums(tile, acc[s]);
    if (threadIdx.x < tile.channels) partial_sums[partial(tile.block, s, threadIdx.x)] = sum;
  }
  if (!is_last_block(arrived + tile.index * kernel + r, tile.blocks)) return;
  const float total = sum_by_channel(
      sum_parts<float>(), tile.blocks, kernel * tile.channels,
      [&](unsigned block, unsigned element) {
        return partial_sums[partial(block, element / tile.channels, element % tile.channels)];
      });
  if (threadIdx.x >= kernel * tile.channels) return;
  const unsigned s = threadIdx.x / tile.channels;
  const unsigned channel = tile.begin + threadIdx.x % tile.channels;
  gradient[(channel * kernel + r) * kernel + s] = from_float<T>(total);
}

template <InputChannel input_channel, class T, int size>
__device__ inline void weight_gradient(const RowTile<size>& tile, const T* x, const T* dy,
                                       const ConvolutionSizes& sizes, int kernel, T* gradient,
                                       float* partial_sums, unsigned* arrived) {
  if (kernel == 3) {
    sum_weights<T, size, 3, input_channel>(tile, x, dy, sizes, gradient, partial_sums, arrived);
  } else {
    sum_weights<T, size, 5, input_channel>(tile, x, dy, sizes, gradient, partial_sums, arrived);
  }
}

template <class T, int size, class... Arguments>
__device__ inline void depthwise_weights(const RowTile<size>& tile, Arguments... arguments) {
  weight_gradient<InputChannel::kSameChannel>(tile, arguments...);
}

template <class T, int size, class... Arguments>
__device__ inline void single_channel_weights(const RowTile<size>& tile, Arguments... arguments) {
  weight_gradient<InputChannel::kOnlyChannel>(tile, arguments...);
}

// Parameters that these kernels share: the RowTile's matrix, and the sizes of the convolution.
#define TILED_IMAGES                                                                       \
  int64 rows, int64 channels, int tiles, int packed, int height, int width, int in_height, \
      int in_width, int stride, int padding, int kernel
#define CONVOLUTION_SIZES \
  ConvolutionSizes{height, width, in_height, in_width, stride, padding}, kernel

#define DEPTHWISE(suffix, T, size)                                                     \
  extern "C" __global__ __launch_bounds__(kTiledThreads) void depthwise_##suffix(      \
      TILED_IMAGES, const T* in, const T* weights, int is_gradient, T* out) {          \
    CALL_PACKED(depthwise, T, size, in, weights, CONVOLUTION_SIZES, is_gradient, out); \
  }                                                                                    \
  EXPORT_KERNEL(depthwise_##suffix)
FOR_EACH_TYPE(DEPTHWISE)

#define SINGLE_CHANNEL(suffix, T, size)                                                \
  extern "C" __global__ __launch_bounds__(kTiledThreads) void single_channel_##suffix( \
      TILED_IMAGES, const T* in, const T* weights, T* out) {                           \
    CALL_PACKED(single_channel, T, size, in, weights, CONVOLUTION_SIZES, out);         \
  }                                                                                    \
  EXPORT_KERNEL(single_channel_##suffix)
FOR_EACH_TYPE_BY_FOUR(SINGLE_CHANNEL)

#define WEIGHT_GRADIENT(name, suffix, T, size)                                                 \
  extern "C" __global__ __launch_bounds__(kTiledThreads) void name##_##suffix(                 \
      TILED_IMAGES, const T* x, const T* dy, T* gradient, float* partial_sums,                 \
      unsigned* arrived) {                                                                     \
    CALL_PACKED_SHARED(name, static_cast<unsigned>(kernel), T, size, x, dy, CONVOLUTION_SIZES, \
                       gradient, partial_sums, arrived);                                       \
  }                                                                                            \
  EXPORT_KERNEL(name##_##suffix)
#define DEPTHWISE_WEIGHTS(suffix, T, size) WEIGHT_GRADIENT(depthwise_weights, suffix, T, size)
FOR_EACH_TYPE(DEPTHWISE_WEIGHTS)
#define SINGLE_CHANNEL_WEIGHTS(suffix, T, size) \
  WEIGHT_GRADIENT(single_channel_weights, suffix, T, size)
FOR_EACH_TYPE_BY_FOUR(SINGLE_CHANNEL_WEIGHTS)
