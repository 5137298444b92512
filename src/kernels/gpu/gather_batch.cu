// Gathers a batch from samples in device memory: for each of `count` positions in `order`, the
// sample's image (as stored), label and seed. Each sample is copied by `parts` blocks.

/// Returns the position of sample `i` of the batch.
__device__ inline int64 sample_position(const int64* positions, int64 first, int64 i) {
  return positions == nullptr ? first + i : positions[i];
}

/// Adds `advance` to all positions once every block has read its position. Every thread must call
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
/// 4, 2 or 1 bytes. `positions` is [count], or null for consecutive positions from `first`.
/// `seeds` is null if not needed.
extern "C" __global__ void gather_rows(const unsigned char* rows, int64 row_bytes, int unit,
                                       int parts, const int64* labels, const int64* order,
                                       const int64* seeds, int64* positions, int64 first,
                                       int64 advance, unsigned char* images, int64* batch_labels,
                                       int64* batch_seeds, unsigned* arrived) {
  const auto blocks = static_cast<unsigned>(parts);
  const unsigned part = blockIdx.x % blocks;
  const int64 i = blockIdx.x / blocks;
  const int64 position = sample_position(positions, first, i);
  advance_positions(positions, gridDim.x / blocks, advance, arrived);
  const int64 sample = order[position];
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
