// Divides a matrix [rows, channels], such as channels_last images, among blocks, for per-channel
// sums and for element-wise operations with per-channel parameters.

constexpr unsigned kTiledThreads = 512;  // per block, as in ../network_kernels.cpp
constexpr unsigned kMaxParts = 16;       // per sum

/// The part of a matrix [rows, channels] that a thread processes. The channels are divided into
/// tiles of at most 64, and the rows of a tile among `blocks` blocks. A block processes `row_slots`
/// rows at once, each thread `size` adjacent channels of one of them.
template <int size>
struct RowTile {
  /// `replicas` adjacent blocks process the same part.
  __device__ RowTile(int64 matrix_rows, int64 matrix_channels, int tiles, unsigned replicas = 1)
      : rows(matrix_rows), stride(matrix_channels) {
    const unsigned tile_count = static_cast<unsigned>(tiles);
    index = blockIdx.x / replicas % tile_count;
    block = blockIdx.x / replicas / tile_count;
    blocks = gridDim.x / replicas / tile_count;
    const unsigned all_groups = static_cast<unsigned>(matrix_channels) / size;
    const unsigned max_groups = (all_groups + tile_count - 1) / tile_count;
    const unsigned first_group = index * max_groups;
    groups = static_cast<unsigned>(min_of(max_groups, all_groups - first_group));
    channels = groups * size;
    begin = first_group * size;
    row_slots = blockDim.x / max_groups;
    const unsigned row_slot = threadIdx.x / groups;
    channel = begin + threadIdx.x % groups * size;
    row = row_slot < row_slots ? first_row() + row_slot : rows;
    step = static_cast<int64>(blocks) * row_slots;
  }

  __device__ int64 first_row() const { return static_cast<int64>(block) * row_slots; }
  __device__ bool has_rows() const { return row < rows; }
  __device__ int64 offset(int64 tile_row) const { return tile_row * stride + channel; }

  int64 rows;
  int64 stride;       // between rows
  unsigned index;     // of the tile
  unsigned block;     // index among the tile's blocks
  unsigned blocks;    // blocks per tile
  unsigned groups;    // groups of `size` channels in the tile
  unsigned channels;  // of the tile
  unsigned begin;     // first channel of the tile
  unsigned row_slots;
  unsigned channel;  // first channel of this thread
  int64 row;         // first row of this thread
  int64 step;        // to this thread's next row
};

/// In a kernel over a matrix, calls a function with the thread's part, in packs of `size` channels
/// if `packed` is set, otherwise in single channels. `replicas` is passed to RowTile.
#define CALL_PACKED_SHARED(function, replicas, T, size, ...)                                   \
  packed != 0 ? function<T, size>(RowTile<size>(rows, channels, tiles, replicas), __VA_ARGS__) \
              : function<T, 1>(RowTile<1>(rows, channels, tiles, replicas), __VA_ARGS__)
#define CALL_PACKED(function, T, size, ...) CALL_PACKED_SHARED(function, 1, T, size, __VA_ARGS__)

/// Calls `use(row, read(row))` for every row of this thread. Reads `batch` rows at a time, which
/// should fit into registers, before using them.
template <int batch, int size, class Read, class Use>
__device__ inline void for_each_row(const RowTile<size>& tile, const Read& read, const Use& use) {
  int64 row = tile.row;
  for (; row + (batch - 1) * tile.step < tile.rows; row += batch * tile.step) {
    decltype(read(row)) values[batch];
    UNROLL for (int i = 0; i < batch; ++i) values[i] = read(row + i * tile.step);
    UNROLL for (int i = 0; i < batch; ++i) use(row + i * tile.step, values[i]);
  }
  for (; row < tile.rows; row += tile.step) {
    auto values = read(row);
    use(row, values);
  }
}

/// Two sums over the rows of a channel.
struct ChannelSums {
  float first;
  float second;
};

__device__ inline ChannelSums operator+(ChannelSums a, ChannelSums b) {
  return {a.first + b.first, a.second + b.second};
}

/// Returns, in the first `channels` threads of a block, the sum of `item(i, channel)` over
/// i < items. The order of summation depends only on `items`, `channels` and the block size. Every
/// thread must call it.
template <class Sum, class Item>
__device__ inline Sum sum_by_channel(Sum* parts, unsigned items, unsigned channels,
                                     const Item& item) {
  const unsigned count = static_cast<unsigned>(min_of(kMaxParts, blockDim.x / channels));
  const unsigned part = threadIdx.x / channels;
  Sum sum{};
  for (unsigned i = part; part < count && i < items; i += count) {
    sum = sum + item(i, threadIdx.x % channels);
  }
  __syncthreads();  // until all threads have read the result of an earlier call
  parts[threadIdx.x] = sum;
  __syncthreads();
  Sum total{};
  for (unsigned i = 0; threadIdx.x < channels && i < count; ++i) {
    total = total + parts[i * channels + threadIdx.x];
  }
  return total;
}

template <class Sum>
__device__ inline Sum* sum_parts() {
  __shared__ Sum parts[kTiledThreads];
  return parts;
}

/// Returns, in the first threads of a block (one per channel of the tile), the sum of that channel
/// over all threads' `thread_sums`. Every thread must call it.
template <int size, class Sum>
__device__ inline Sum block_sums(const RowTile<size>& tile, const Sum* thread_sums) {
  constexpr unsigned kStride = kTiledThreads + 2;  // puts neighbours in different banks
  __shared__ Sum sums[size * kStride];
  for (unsigned i = 0; i < size; ++i) sums[i * kStride + threadIdx.x] = thread_sums[i];
  __syncthreads();
  return sum_by_channel(
      sum_parts<Sum>(), tile.row_slots, tile.channels, [&](unsigned row_slot, unsigned channel) {
        return sums[channel % size * kStride + row_slot * tile.groups + channel / size];
      });
}

/// Number of rows of each block in a tile.
struct BlockRows {
  template <int size>
  __device__ explicit BlockRows(const RowTile<size>& tile)
      : row_slots(tile.row_slots),
        rounds(tile.rows / tile.row_slots / tile.blocks),
        last_block(static_cast<unsigned>(tile.rows / tile.row_slots % tile.blocks)),
        rest(tile.rows % tile.row_slots) {}

  __device__ float count(unsigned block) const {
    const int64 full = (rounds + (block < last_block ? 1 : 0)) * row_slots;
    return static_cast<float>(full + (block == last_block ? rest : 0));
  }

  int64 row_slots;
  int64 rounds;         // full rounds over all blocks
  unsigned last_block;  // also processes the last `rest` rows, which do not fill its row slots
  int64 rest;
};
