// Gathers a batch from samples in device memory: the image, label and seed at each of `count`
// positions in an order of the samples. `parts` blocks share a sample.
//
// gather_rows copies images as they are stored.
//
// gather_pixels augments and normalises stored bytes. It traces each output pixel back through the
// augmentations to its source, so there are no intermediate images. The augmentations match
// src/loader/augmenter.cpp: crop and flip as in torchvision's RandomCrop and RandomHorizontalFlip,
// and DeVries and Taylor's Cutout. Mixup with the next sample is
//     weight * own + (1 - weight) * other
// (Zhang et al., "mixup", 2018), with the products and the sum rounded separately; bytes are
// clipped and truncated. A table maps bytes to normalised values.

/// Returns the position of sample `i` of the batch.
__device__ inline int64 position_of(const int64* positions, int64 first, int64 i) {
  return positions == nullptr ? first + i : positions[i];
}

__device__ inline int64 sample_at(const int64* order, int64 position) {
  return order == nullptr ? position : order[position];
}

/// Adds `advance` to all positions once every block has read its positions. Every thread must call
/// it.
__device__ inline void advance_positions(int64* positions, int64 count, int64 advance,
                                         unsigned* arrived) {
  if (advance == 0 || !is_last_block(arrived)) return;
  for (int64 i = threadIdx.x; i < count; i += blockDim.x) positions[i] += advance;
}

/// Copies this block's part of a row; rows must be aligned to Unit.
template <class Unit>
__device__ inline void copy_row(const unsigned char* from, unsigned char* to, int64 bytes,
                                unsigned part, unsigned parts) {
  const Unit* __restrict__ in = reinterpret_cast<const Unit*>(from);
  Unit* __restrict__ out = reinterpret_cast<Unit*>(to);
  const int64 units = bytes / static_cast<int64>(sizeof(Unit));
  const int64 step = static_cast<int64>(parts) * blockDim.x;
  for (int64 i = static_cast<int64>(part) * blockDim.x + threadIdx.x; i < units; i += step) {
    out[i] = in[i];
  }
}

/// Copies rows from `rows` [samples, row_bytes] to `images` [count, row_bytes] in units of 16, 8,
/// 4, 2 or 1 bytes. `positions` is [all_positions], or null for consecutive positions from `first`.
/// `order` is null for the stored order, and `seeds` is null if not needed.
extern "C" __global__ void gather_rows(const unsigned char* rows, int64 row_bytes, int unit,
                                       int parts, const int64* labels, const int64* order,
                                       const int64* seeds, int64* positions, int64 all_positions,
                                       int64 first, int64 advance, unsigned char* images,
                                       int64* batch_labels, int64* batch_seeds, unsigned* arrived) {
  const auto blocks = static_cast<unsigned>(parts);
  const unsigned part = blockIdx.x % blocks;
  const int64 i = blockIdx.x / blocks;
  const int64 position = position_of(positions, first, i);
  advance_positions(positions, all_positions, advance, arrived);
  const int64 sample = sample_at(order, position);
  if (part == 0 && threadIdx.x == 0) {
    batch_labels[i] = labels[sample];
    if (seeds != nullptr) batch_seeds[i] = seeds[position];
  }
  const unsigned char* from = rows + sample * row_bytes;
  unsigned char* to = images + i * row_bytes;
  if (unit == 16) return copy_row<Pack<unsigned, 4>>(from, to, row_bytes, part, blocks);
  if (unit == 8) return copy_row<Pack<unsigned, 2>>(from, to, row_bytes, part, blocks);
  if (unit == 4) return copy_row<unsigned>(from, to, row_bytes, part, blocks);
  if (unit == 2) return copy_row<unsigned short>(from, to, row_bytes, part, blocks);
  copy_row<unsigned char>(from, to, row_bytes, part, blocks);
}
EXPORT_KERNEL(gather_rows)

/// One augmentation of images of this size. Its random values start at `column` in the sample's row
/// of `drawn`: the first pixel of the window in the padded image, whether to flip, or the first
/// pixel of the square.
struct PixelStep {
  int kind;
  int column;
  int height;
  int width;
  int extent;  // padding of a crop, or side of a cutout square
};
constexpr int kCrop = 0;
constexpr int kFlip = 1;

/// The source of a pixel, and the step that set it to zero, or -1.
struct PixelSource {
  int y;
  int x;
  int cleared_by;
};

/// Traces a pixel back through the steps [begin, end).
__device__ inline PixelSource trace_back(PixelSource source, const PixelStep* steps, int begin,
                                         int end, const float* drawn) {
  for (int k = end - 1; k >= begin && source.cleared_by < 0; --k) {
    const PixelStep step = steps[k];
    const float* own = drawn + step.column;
    if (step.kind == kFlip) {
      if (own[0] != 0) source.x = step.width - 1 - source.x;
      continue;
    }
    const int top = static_cast<int>(own[0]);
    const int left = static_cast<int>(own[1]);
    if (step.kind == kCrop) {
      source.y += top - step.extent;
      source.x += left - step.extent;
      const bool is_inside =
          source.y >= 0 && source.y < step.height && source.x >= 0 && source.x < step.width;
      if (!is_inside) source.cleared_by = k;
    } else if (source.y >= top && source.y < top + step.extent && source.x >= left &&
               source.x < left + step.extent) {
      source.cleared_by = k;
    }
  }
  return source;
}

constexpr int kZero = -1;  // not a byte: zeroed by a step after the normalisation

/// Returns the byte at a position in an image plane, or kZero.
__device__ inline int byte_at(const unsigned char* plane, PixelSource source, int width,
                              int normalized_before) {
  if (source.cleared_by < 0) return plane[source.y * width + source.x];
  return source.cleared_by < normalized_before ? 0 : kZero;
}

__device__ inline float normalized(int byte, const float* table) {
  return byte == kZero ? 0.0F : table[byte];
}

__device__ inline float mix(float weight, float own, float other) {
  return __fadd_rn(__fmul_rn(weight, own), __fmul_rn(1.0F - weight, other));
}

/// `rows` contains the bytes of images [channels, stored_height, stored_width]; `images` is [count,
/// height, width, channels]. `tables` is [256] for all channels, or [channels, 256] with tables
/// `table_step` values apart. `drawn` is [positions of the order, columns]. Samples are mixed
/// before step `mixed_before` (-1: not at all), with the weight in `weight_column`, as bytes or as
/// normalised values, and are normalised before step `normalized_before`. The other parameters are
/// the same as for `gather_rows`.
template <class T>
__device__ inline void gather_pixels(const unsigned char* rows, int channels, int stored_height,
                                     int stored_width, int height, int width,
                                     const PixelStep* steps, int step_count, int mixed_before,
                                     int mixes_bytes, int normalized_before, int weight_column,
                                     const float* tables, int table_step, const float* drawn,
                                     int64 columns, int parts, const int64* labels,
                                     const int64* order, const int64* seeds, int64* positions,
                                     int64 all_positions, int64 first, int64 advance, T* images,
                                     int64* batch_labels, int64* other_labels, float* weights,
                                     int64* batch_seeds, unsigned* arrived) {
  const auto blocks = static_cast<unsigned>(parts);
  const unsigned part = blockIdx.x % blocks;
  const int64 i = blockIdx.x / blocks;
  const bool mixes = mixed_before >= 0;
  const int64 position = position_of(positions, first, i);
  const int64 next = mixes ? position_of(positions, first, i + 1) : position;
  advance_positions(positions, all_positions, advance, arrived);
  const int64 sample = sample_at(order, position);
  const int64 other = sample_at(order, next);
  const float* own_drawn = drawn + position * columns;
  const float* other_drawn = drawn + next * columns;
  const float weight = mixes ? own_drawn[weight_column] : 1.0F;
  if (part == 0 && threadIdx.x == 0) {
    batch_labels[i] = labels[sample];
    if (seeds != nullptr) batch_seeds[i] = seeds[position];
    if (mixes) {
      other_labels[i] = labels[other];
      weights[i] = weight;
    }
  }
  const int64 plane = static_cast<int64>(stored_height) * stored_width;
  const unsigned char* own_image = rows + sample * channels * plane;
  const unsigned char* other_image = rows + other * channels * plane;
  const int mixed_at = mixes ? mixed_before : 0;
  const auto row = static_cast<unsigned>(width);
  const unsigned pixels = static_cast<unsigned>(height) * row;
  for (unsigned pixel = part * blockDim.x + threadIdx.x; pixel < pixels;
       pixel += blocks * blockDim.x) {
    const PixelSource whole{static_cast<int>(pixel / row), static_cast<int>(pixel % row), -1};
    const PixelSource mixed = trace_back(whole, steps, mixed_at, step_count, own_drawn);
    const PixelSource own = trace_back(mixed, steps, 0, mixed_at, own_drawn);
    const PixelSource partner = mixes ? trace_back(mixed, steps, 0, mixed_at, other_drawn) : own;
    T* out = images + (i * pixels + pixel) * channels;
    for (int channel = 0; channel < channels; ++channel) {
      const float* table = tables + channel * table_step;
      const int a = byte_at(own_image + channel * plane, own, stored_width, normalized_before);
      float value;
      if (!mixes || mixed.cleared_by >= 0) {
        value = normalized(a, table);
      } else {
        const int b =
            byte_at(other_image + channel * plane, partner, stored_width, normalized_before);
        if (mixes_bytes != 0) {
          const float sum = mix(weight, static_cast<float>(a), static_cast<float>(b));
          value = table[static_cast<int>(fminf(fmaxf(sum, 0.0F), 255.0F))];
        } else {
          value = mix(weight, normalized(a, table), normalized(b, table));
        }
      }
      out[channel] = from_float<T>(value);
    }
  }
}

#define GATHER_PIXELS(suffix, T, size)                                                           \
  extern "C" __global__ void gather_pixels_##suffix(                                             \
      const unsigned char* rows, int channels, int stored_height, int stored_width, int height,  \
      int width, const PixelStep* steps, int step_count, int mixed_before, int mixes_bytes,      \
      int normalized_before, int weight_column, const float* tables, int table_step,             \
      const float* drawn, int64 columns, int parts, const int64* labels, const int64* order,     \
      const int64* seeds, int64* positions, int64 all_positions, int64 first, int64 advance,     \
      T* images, int64* batch_labels, int64* other_labels, float* weights, int64* batch_seeds,   \
      unsigned* arrived) {                                                                       \
    gather_pixels<T>(rows, channels, stored_height, stored_width, height, width, steps,          \
                     step_count, mixed_before, mixes_bytes, normalized_before, weight_column,    \
                     tables, table_step, drawn, columns, parts, labels, order, seeds, positions, \
                     all_positions, first, advance, images, batch_labels, other_labels, weights, \
                     batch_seeds, arrived);                                                      \
  }                                                                                              \
  EXPORT_KERNEL(gather_pixels_##suffix)
FOR_EACH_TYPE(GATHER_PIXELS)
