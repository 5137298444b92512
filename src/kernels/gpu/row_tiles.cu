// How blocks divide a matrix of rows of channels, which is what channels_last images are, to add up
// each channel, or to compute something of each element that depends on its channel.

constexpr unsigned kNormThreads = 512;  // of a block
constexpr unsigned kMaxParts = 16;      // into which sums are divided

/// The part of a matrix [rows, channels] that a thread computes. The channels are divided into
/// tiles of at most 64, and a tile's rows among `blocks` blocks. `lanes` threads, or groups of
/// threads, take a row of a block each, and every thread of such a group `size` neighbouring
/// channels of it.
template <int size>
struct NormTile {
  __device__ NormTile(int64 matrix_rows, int64 matrix_channels, int tiles)
      : rows(matrix_rows), stride(matrix_channels) {
    const unsigned tile_count = static_cast<unsigned>(tiles);
    number = blockIdx.x % tile_count;
    block = blockIdx.x / tile_count;
    blocks = gridDim.x / tile_count;
    const unsigned all_groups = static_cast<unsigned>(matrix_channels) / size;
    const unsigned most_groups = (all_groups + tile_count - 1) / tile_count;
    const unsigned first_group = number * most_groups;
    groups = static_cast<unsigned>(min_of(most_groups, all_groups - first_group));
    channels = groups * size;
    begin = first_group * size;
    lanes = blockDim.x / most_groups;
    const unsigned lane = threadIdx.x / groups;
    channel = begin + threadIdx.x % groups * size;
    row = lane < lanes ? first_row() + lane : rows;
    step = static_cast<int64>(blocks) * lanes;
  }

  __device__ int64 first_row() const { return static_cast<int64>(block) * lanes; }
  __device__ bool has_rows() const { return row < rows; }
  __device__ int64 place(int64 of_row) const { return of_row * stride + channel; }

  int64 rows;
  int64 stride;       // from row to row
  unsigned number;    // of the tile
  unsigned block;     // among those of the tile
  unsigned blocks;    // of the tile
  unsigned groups;    // of threads
  unsigned channels;  // of the tile
  unsigned begin;     // its first channel
  unsigned lanes;
  unsigned channel;  // the first one of this thread
  int64 row;         // the first one of this thread
  int64 step;        // to its next one
};

/// Calls `use(row, read(row))` for every row of this thread, and reads `at_once` before it uses
/// them: as many as there are registers for.
template <int at_once, int size, class Read, class Use>
__device__ inline void for_each_row(const NormTile<size>& tile, const Read& read, const Use& use) {
  int64 row = tile.row;
  for (; row + (at_once - 1) * tile.step < tile.rows; row += at_once * tile.step) {
    decltype(read(row)) values[at_once];
    UNROLL for (int i = 0; i < at_once; ++i) values[i] = read(row + i * tile.step);
    UNROLL for (int i = 0; i < at_once; ++i) use(row + i * tile.step, values[i]);
  }
  for (; row < tile.rows; row += tile.step) {
    auto values = read(row);
    use(row, values);
  }
}

/// Two sums over rows of a channel.
struct ChannelSums {
  float first;
  float second;
};

__device__ inline ChannelSums operator+(ChannelSums a, ChannelSums b) {
  return {a.first + b.first, a.second + b.second};
}

/// Returns, in the first threads of a block, one for each channel, the sum of `item(i, channel)`
/// over i < items, in an order that depends on the numbers alone. Every thread must call it.
template <class Sum, class Item>
__device__ inline Sum sum_by_channel(Sum* parts, unsigned items, unsigned channels,
                                     const Item& item) {
  const unsigned count = static_cast<unsigned>(min_of(kMaxParts, blockDim.x / channels));
  const unsigned part = threadIdx.x / channels;
  Sum sum{};
  for (unsigned i = part; part < count && i < items; i += count) {
    sum = sum + item(i, threadIdx.x % channels);
  }
  __syncthreads();  // until everyone has read what an earlier call left
  parts[threadIdx.x] = sum;
  __syncthreads();
  Sum total{};
  for (unsigned i = 0; threadIdx.x < channels && i < count; ++i) {
    total = total + parts[i * channels + threadIdx.x];
  }
  return total;
}

template <class Sum>
__device__ inline Sum* parts_of_sums() {
  __shared__ Sum parts[kNormThreads];
  return parts;
}

/// Returns, in the first threads of a block, one for each channel of the tile, the sums over the
/// block of what each thread has for its channels. Every thread must call it.
template <int size, class Sum>
__device__ inline Sum sums_of_block(const NormTile<size>& tile, const Sum* own) {
  constexpr unsigned kStride = kNormThreads + 2;  // so that neighbours are in different banks
  __shared__ Sum sums[size * kStride];
  for (unsigned i = 0; i < size; ++i) sums[i * kStride + threadIdx.x] = own[i];
  __syncthreads();
  return sum_by_channel(
      parts_of_sums<Sum>(), tile.lanes, tile.channels, [&](unsigned lane, unsigned channel) {
        return sums[channel % size * kStride + lane * tile.groups + channel / size];
      });
}

/// How many rows a block of a tile has.
struct RowsOfBlocks {
  template <int size>
  __device__ explicit RowsOfBlocks(const NormTile<size>& tile)
      : lanes(tile.lanes),
        turns(tile.rows / tile.lanes / tile.blocks),
        last_block(static_cast<unsigned>(tile.rows / tile.lanes % tile.blocks)),
        rest(tile.rows % tile.lanes) {}

  __device__ float of(unsigned block) const {
    const int64 full = (turns + (block < last_block ? 1 : 0)) * lanes;
    return static_cast<float>(full + (block == last_block ? rest : 0));
  }

  int64 lanes;
  int64 turns;          // that every block takes
  unsigned last_block;  // that has the rows behind the last full turn, of which there are `rest`
  int64 rest;
};
