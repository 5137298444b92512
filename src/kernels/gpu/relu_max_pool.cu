// Bias, ReLU and 2x2 max pooling in channels_last format, and their gradient. For x [N,H,W,C] and
// bias b
//     y[n,i,j,c] = max(0, max over p, q in {0, 1} of x[n,2i+p,2j+q,c] + b[c])
// The position 2p+q of the maximum is stored: the first one in case of a tie, or 4 if none is
// positive. NaN counts as the largest value. Sums with the bias are first rounded to the type of x,
// as if they were stored.
//     dx[n,2i+p,2j+q,c] = dy[n,i,j,c] at that position, 0 elsewhere
//     db[c] = sum over n, h, w of dx
// An odd last row or column belongs to no window: its gradient is 0. Before a flatten, y and dy are
// planar, [N,C,H/2,W/2], so flattening needs no copy. Sources: torch.max_pool2d and torch.relu;
// Harris, "Optimizing parallel reduction in CUDA" (2007), for the sums.

constexpr unsigned kMaxPoolThreads = 512;
constexpr unsigned char kNoMaximum = 4;

/// Input images [images, height, width, channels] with fewer than 2^31 values in total. The output
/// is channels_last too, or planar.
struct PooledImages {
  unsigned images, height, width, channels;
  bool planar;

  /// Returns the offset of a window's first value; an image has `rows` x `columns` windows.
  __device__ unsigned corner(unsigned window, unsigned rows, unsigned columns) const {
    const unsigned row = window / columns;  // counted over all images
    const unsigned y = row / rows * height + 2 * (row % rows);
    return (y * width + 2 * (window % columns)) * channels;
  }
  /// Returns the offset of one of a window's four positions from its first value.
  __device__ unsigned offset(unsigned position) const {
    return (position / 2 * width + position % 2) * channels;
  }
  /// Returns the distance between the channels of planar output.
  __device__ unsigned plane() const { return (height / 2) * (width / 2); }
  /// Returns the offset of a window's channel in planar output; an image has `plane()` windows.
  __device__ unsigned planar_offset(unsigned window, unsigned channel) const {
    return (window / plane() * channels + channel) * plane() + window % plane();
  }
};

template <class T>
struct PoolForward {
  PooledImages in;
  const T* x;
  const T* bias;          // [channels], or null
  T* out;                 // [images, height / 2, width / 2, channels] unless planar
  unsigned char* argmax;  // [images, height / 2, width / 2, channels]
};

template <class T>
struct PoolBackward {
  PooledImages in;
  const T* gradient;            // [images, height / 2, width / 2, channels] unless planar
  const unsigned char* argmax;  // [images, height / 2, width / 2, channels]
  T* dx;
  T* bias_gradient;     // [channels]; null if not needed
  float* partial_sums;  // [blocks, channels]
  unsigned* arrived;
  float* shared;  // [threads * size]
};

/// Loads the bias of adjacent channels; it may start at any element of a parameter buffer.
template <class T, int size>
__device__ inline Pack<T, size> load_bias(const T* bias) {
  using Values = Pack<T, size>;
  Values values = {};
  if (bias == nullptr) return values;
  if (is_aligned(bias, sizeof(Values))) return load<size>(bias);
  for (int k = 0; k < size; ++k) values.values[k] = bias[k];
  return values;
}

/// Each thread computes `size` adjacent channels of one window.
template <class T, int size>
__device__ inline void pool_window(const PoolForward<T>& pool) {
  using Values = Pack<T, size>;
  const PooledImages& in = pool.in;
  const unsigned groups = in.channels / size;
  const unsigned rows = in.height / 2;
  const unsigned columns = in.width / 2;
  const unsigned thread = static_cast<unsigned>(global_thread());
  if (thread >= in.images * rows * columns * groups) return;
  const unsigned channel = thread % groups * size;
  const T* const corner = pool.x + in.corner(thread / groups, rows, columns) + channel;
  Values values[4];
  for (unsigned position = 0; position < 4; ++position) {
    values[position] = load<size>(corner + in.offset(position));
  }
  const Values bias = load_bias<T, size>(pool.bias == nullptr ? nullptr : pool.bias + channel);
  Values out;
  Pack<unsigned char, size> argmax;
  for (int k = 0; k < size; ++k) {
    float best = 0;
    unsigned char best_position = kNoMaximum;
    for (unsigned char position = 0; position < 4; ++position) {
      const float exact = to_float(values[position].values[k]) + to_float(bias.values[k]);
      const float value = to_float(from_float<T>(exact));
      const bool is_larger = value > best || (value != value && best == best);
      best_position = is_larger ? position : best_position;
      best = is_larger ? value : best;
    }
    out.values[k] = from_float<T>(best);
    argmax.values[k] = best_position;
  }
  const unsigned pooled = thread * size;
  store(pool.argmax + pooled, argmax);
  if (!in.planar) return store(pool.out + pooled, out);
  T* const planar = pool.out + in.planar_offset(thread / groups, channel);
  for (unsigned k = 0; k < size; ++k) planar[k * in.plane()] = out.values[k];
}

/// Writes the gradient of one window for `size` channels starting at `channel`, and adds it to
/// `sums`. Here, windows include the incomplete ones at an odd last row or column.
template <class T, int size>
__device__ inline void scatter_window(const PoolBackward<T>& pool, unsigned window,
                                      unsigned channel, float* sums) {
  using Values = Pack<T, size>;
  const PooledImages& in = pool.in;
  const unsigned rows = (in.height + 1) / 2;
  const unsigned columns = (in.width + 1) / 2;
  const unsigned x = window % columns;
  const unsigned y = window / columns % rows;
  const bool has_right = 2 * x + 1 < in.width;
  const bool has_bottom = 2 * y + 1 < in.height;
  Values gradient = {};
  Pack<unsigned char, size> argmax = {};
  if (has_right && has_bottom) {
    const unsigned image = window / columns / rows;
    const unsigned row = image * (in.height / 2) + y;
    const unsigned pooled_pixel = row * (in.width / 2) + x;
    const unsigned pooled = pooled_pixel * in.channels + channel;
    if (in.planar) {
      const T* const planar = pool.gradient + in.planar_offset(pooled_pixel, channel);
      for (unsigned k = 0; k < size; ++k) gradient.values[k] = planar[k * in.plane()];
    } else {
      gradient = load<size>(pool.gradient + pooled);
    }
    argmax = load<size>(pool.argmax + pooled);
  }
  T* const corner = pool.dx + in.corner(window, rows, columns) + channel;
  for (unsigned position = 0; position < 4; ++position) {
    if ((position % 2 != 0 && !has_right) || (position / 2 != 0 && !has_bottom)) continue;
    Values values;
    for (int k = 0; k < size; ++k) {
      values.values[k] = argmax.values[k] == position ? gradient.values[k] : T{};
    }
    store(corner + in.offset(position), values);
  }
  for (int k = 0; k < size; ++k) {
    sums[k] += argmax.values[k] == kNoMaximum ? 0.0F : to_float(gradient.values[k]);
  }
}

/// Adds up the `sums` of each column of threads; row 0 receives the totals. Every thread of the
/// block must call it.
template <int size>
__device__ inline void sum_over_rows(float* shared, unsigned columns, unsigned rows, float* sums) {
  const unsigned row = threadIdx.x / columns;
  __syncthreads();  // until all threads have read the result of an earlier call
  for (int k = 0; k < size; ++k) shared[k * blockDim.x + threadIdx.x] = sums[k];
  for (unsigned left = rows; left > 1;) {
    const unsigned half = (left + 1) / 2;
    __syncthreads();
    for (int k = 0; row + half < left && k < size; ++k) {
      float* const slot = shared + k * blockDim.x + threadIdx.x;
      *slot += slot[half * columns];
    }
    left = half;
  }
  // Each thread reads only values that it wrote itself.
  for (int k = 0; k < size; ++k) sums[k] = shared[k * blockDim.x + threadIdx.x];
}

/// A block consists of rows of threads, with one thread per group of `size` channels, so each
/// thread keeps its channels from window to window. If there are more groups than threads, each
/// thread processes multiple groups, one after another.
template <class T, int size>
__device__ inline void scatter_windows(const PoolBackward<T>& pool) {
  const PooledImages& in = pool.in;
  const unsigned groups = in.channels / size;
  const unsigned columns = groups < blockDim.x ? groups : blockDim.x;
  const unsigned rows = blockDim.x / columns;
  const unsigned row = threadIdx.x / columns;
  const unsigned column = threadIdx.x % columns;
  const unsigned windows = in.images * ((in.height + 1) / 2) * ((in.width + 1) / 2);
  for (unsigned first = 0; first < groups; first += columns) {
    const unsigned channel = (first + column) * size;
    const bool is_active = row < rows && channel < in.channels;
    Pack<float, size> sums = {};
    for (unsigned window = blockIdx.x * rows + row; is_active && window < windows;
         window += gridDim.x * rows) {
      scatter_window<T, size>(pool, window, channel, sums.values);
    }
    if (pool.bias_gradient == nullptr) continue;
    sum_over_rows<size>(pool.shared, columns, rows, sums.values);
    if (!is_active || row != 0) continue;
    store(pool.partial_sums + blockIdx.x * in.channels + channel, sums);
  }
  if (pool.bias_gradient == nullptr || !is_last_block(pool.arrived)) return;
  // The order of summation does not depend on which block arrived last.
  for (unsigned first = 0; first < groups; first += columns) {
    const unsigned channel = (first + column) * size;
    const bool is_active = row < rows && channel < in.channels;
    Pack<float, size> sums = {};
    for (unsigned block = row; is_active && block < gridDim.x; block += rows) {
      const auto partial = load<size>(pool.partial_sums + block * in.channels + channel);
      for (int k = 0; k < size; ++k) sums.values[k] += partial.values[k];
    }
    sum_over_rows<size>(pool.shared, columns, rows, sums.values);
    for (int k = 0; is_active && row == 0 && k < size; ++k) {
      pool.bias_gradient[channel + k] = from_float<T>(sums.values[k]);
    }
  }
}

/// In a kernel, calls a function for packs of `pack_size` channels, which is `size`, 4, 2 or 1 and
/// divides the number of channels. All addresses except the bias's are aligned to packs.
#define CALL_SIZED(function, T, size, pool)   \
  pack_size == size ? function<T, size>(pool) \
  : pack_size == 4  ? function<T, 4>(pool)    \
  : pack_size == 2  ? function<T, 2>(pool)    \
                    : function<T, 1>(pool)

#define RELU_MAX_POOL(suffix, T, size)                                               \
  extern "C" __global__ void relu_max_pool_##suffix(                                 \
      const T* x, const T* bias, unsigned images, unsigned height, unsigned width,   \
      unsigned channels, int planar, int pack_size, T* out, unsigned char* argmax) { \
    const PooledImages in{images, height, width, channels, planar != 0};             \
    const PoolForward<T> pool{in, x, bias, out, argmax};                             \
    CALL_SIZED(pool_window, T, size, pool);                                          \
  }                                                                                  \
  EXPORT_KERNEL(relu_max_pool_##suffix)
FOR_EACH_TYPE(RELU_MAX_POOL)

#define RELU_MAX_POOL_BACKWARD(suffix, T, size)                                                  \
  extern "C" __global__ __launch_bounds__(kMaxPoolThreads) void relu_max_pool_backward_##suffix( \
      const T* gradient, const unsigned char* argmax, unsigned images, unsigned height,          \
      unsigned width, unsigned channels, int planar, int pack_size, T* dx, T* bias_gradient,     \
      float* partial_sums, unsigned* arrived) {                                                  \
    __shared__ float shared[kMaxPoolThreads * size];                                             \
    const PooledImages in{images, height, width, channels, planar != 0};                         \
    const PoolBackward<T> pool{in,           gradient, argmax, dx, bias_gradient,                \
                               partial_sums, arrived,  shared};                                  \
    CALL_SIZED(scatter_windows, T, size, pool);                                                  \
  }                                                                                              \
  EXPORT_KERNEL(relu_max_pool_backward_##suffix)
FOR_EACH_TYPE(RELU_MAX_POOL_BACKWARD)
