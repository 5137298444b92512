#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/launch.h"

namespace mnist_train::kernels {

inline constexpr std::int64_t kTiledThreads = 512;  // of a block, as in gpu/row_tiles.cu
inline constexpr std::int64_t kTileChannels = 64;   // of a block, at most

/// Returns whether there are counters of arrived blocks for all tiles of this many channels.
inline bool has_few_tiles(std::int64_t channels) {
  return divided_up(channels, kTileChannels) <= kArrivedBlocks;
}

/// The division of tensors into rows, tiles of channels and blocks, see gpu/row_tiles.cu.
struct RowTiles {
  /// Several adjacent channels are loaded at once if all tensors allow it.
  RowTiles(const at::Tensor& x, std::initializer_list<at::Tensor> others)
      : rows(x.numel() / x.size(1)), channels(x.size(1)) {
    constexpr std::int64_t kBytes = 16;
    std::int64_t size = kBytes / x.element_size();
    packed = channels % size == 0 && is_aligned(x, kBytes) &&
             std::all_of(others.begin(), others.end(),
                         [](const at::Tensor& other) { return is_aligned(other, kBytes); });
    if (!packed) size = 1;
    const std::int64_t groups = channels / size;
    const std::int64_t tile_count = divided_up(groups, kTileChannels / size);
    tiles = as_int(tile_count);
    row_slots = kTiledThreads / divided_up(groups, tile_count);
  }

  /// Returns the number of blocks of a tile: `most` for all tiles, each with at least
  /// `rows_of_thread` rows for a thread.
  std::int64_t blocks(std::int64_t most, std::int64_t rows_of_thread) const {
    return std::max<std::int64_t>(
        std::min<std::int64_t>(rows / (row_slots * rows_of_thread), most / tiles), 1);
  }

  accelerator::Grid grid(std::int64_t blocks_of_tile) const {
    return {static_cast<unsigned>(blocks_of_tile * tiles), kTiledThreads};
  }

  std::int64_t rows;
  std::int64_t channels;
  int tiles = 0;
  bool packed = false;
  std::int64_t row_slots = 0;  // rows that a block takes at once
};

}  // namespace mnist_train::kernels
