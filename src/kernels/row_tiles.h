#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/launch.h"

namespace mnist_train::kernels {

inline constexpr std::int64_t kTiledThreads = 512;  // of a block, as in gpu/row_tiles.cu
inline constexpr std::int64_t kTileChannels = 64;   // that a block has at most

inline std::int64_t divided_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Returns whether there are counters of arrived blocks for all tiles of so many channels.
inline bool has_few_tiles(std::int64_t channels) {
  return divided_up(channels, kTileChannels) <= kArrivedBlocks;
}

/// How tensors are divided into rows, tiles of channels and blocks, see gpu/row_tiles.cu.
struct RowTiles {
  /// Several neighbouring channels are read at once where all tensors allow it.
  RowTiles(const at::Tensor& x, std::initializer_list<at::Tensor> others)
      : rows(x.numel() / x.size(1)), channels(x.size(1)) {
    const auto is_aligned = [](const at::Tensor& tensor) {
      return reinterpret_cast<std::uintptr_t>(memory_of(tensor)) % 16 == 0;
    };
    std::int64_t size = 16 / x.element_size();
    packed = channels % size == 0 && is_aligned(x) &&
                     std::all_of(others.begin(), others.end(), is_aligned)
                 ? 1
                 : 0;
    if (packed == 0) size = 1;
    const std::int64_t groups = channels / size;
    const std::int64_t tile_count = divided_up(groups, kTileChannels / size);
    tiles = static_cast<int>(tile_count);
    row_slots = kTiledThreads / divided_up(groups, tile_count);
  }

  /// Returns how many blocks a tile has: `most` in all tiles, each with `rows_of_thread` or more.
  std::int64_t blocks(std::int64_t most, std::int64_t rows_of_thread) const {
    return std::max<std::int64_t>(
        std::min<std::int64_t>(rows / (row_slots * rows_of_thread), most / tiles), 1);
  }

  accelerator::Grid grid(std::int64_t blocks_of_tile) const {
    return {static_cast<unsigned>(blocks_of_tile * tiles), kTiledThreads};
  }

  long long rows;
  long long channels;
  int tiles = 0;
  int packed = 0;
  std::int64_t row_slots = 0;  // rows that a block takes at once
};

}  // namespace mnist_train::kernels
