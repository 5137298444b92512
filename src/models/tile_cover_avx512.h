#pragma once

// Only for sources that are compiled with AVX-512 switched on, like lanes_avx512.h.

#include "base/cpu_features.h"
#include "models/tile_amx.h"

namespace mnist_train::models::avx512 {

/// Covers `rows` rows of V vectors with calls of `work.tile<Tile<M, V>>({}, row, vector)`: with few
/// tiles, most of which nearly fill the registers.
template <int V, class Work>
void tile_rows(std::int64_t rows, std::int64_t vector, const Work& work) {
  constexpr std::int64_t kMost = kTile / V;
  std::int64_t tiles = (rows + kMost - 1) / kMost;
  std::int64_t row = 0;
  // Tiles of M rows, unless smaller ones are enough for what is left.
  const auto cover = [&]<int M, int Smaller>() {
    if constexpr (M <= kMost) {
      for (; rows - row >= M && rows - row > tiles * Smaller; row += M, --tiles) {
        work.template tile<Tile<M, V>>({}, row, vector);
      }
    }
  };
  cover.template operator()<12, 8>();
  cover.template operator()<8, 6>();
  cover.template operator()<6, 5>();
  cover.template operator()<5, 4>();
  cover.template operator()<4, 2>();
  cover.template operator()<2, 1>();
  cover.template operator()<1, 0>();
}

/// Covers `rows` rows of `count` vectors with calls of `work.tile<Tile<M, V>>({}, row, vector)`.
template <class Work>
void for_each_tile(std::int64_t rows, std::int64_t count, const Work& work) {
  for (std::int64_t vector = 0; vector < count; vector += kMaxVectors) {
    if (count - vector == 1) {
      tile_rows<1>(rows, vector, work);
    } else if (count - vector == 2) {
      tile_rows<2>(rows, vector, work);
    } else if (count - vector == 3) {
      tile_rows<3>(rows, vector, work);
    } else {
      tile_rows<4>(rows, vector, work);
    }
  }
}

/// Covers products of bf16 matrices with tiles: of AMX where this process may use it and the inner
/// dimension divides well, else of AVX-512. AMX's registers are set up for as long as this lives.
class TileCover {
 public:
  /// For products over inner dimensions of multiples of `inner`.
  explicit TileCover(std::int64_t inner) : pairs_(cpu_features().amx_bf16 ? amx_pairs(inner) : 0) {}
  ~TileCover() {
    if (rows_ != 0) AmxShapes::release();
  }
  TileCover(const TileCover&) = delete;
  TileCover& operator=(const TileCover&) = delete;

  /// Returns whether pairs of a row of `a` have to lie side by side.
  bool by_amx() const { return pairs_ != 0; }

  /// Returns how many rows the widest tiles have.
  std::int64_t most_rows() const { return by_amx() ? 2 * AmxShapes::kMost : kTileRows; }
  /// Covers `rows` rows of `count` vectors with calls of `work.tile<Tile>(shapes, row, vector)`.
  template <class Work>
  void cover(std::int64_t rows, std::int64_t count, const Work& work) {
    if (!by_amx() || rows == 0) return for_each_tile(rows, count, work);
    const std::int64_t whole = rows / amx_rows(rows) * amx_rows(rows);
    cover_by_amx(amx_rows(rows), 0, whole, count, work);
    cover_by_amx(rows - whole, whole, rows, count, work);
  }

 private:
  static constexpr std::int64_t kFewestRows = 8;  // that are worth a register
  static constexpr std::int64_t kFewestPairs = 3;

  /// Returns the largest number that divides `count` and fits into a register, 0: it is too few.
  static std::int64_t divisor(std::int64_t count, std::int64_t fewest) {
    for (std::int64_t i = AmxShapes::kMost; i >= fewest; --i) {
      if (count % i == 0) return i;
    }
    return 0;
  }
  static std::int64_t amx_pairs(std::int64_t inner) {
    return inner % 2 == 0 ? divisor(inner / 2, kFewestPairs) : 0;
  }
  static std::int64_t amx_rows(std::int64_t rows) {
    if (rows <= AmxShapes::kMost) return rows;
    const std::int64_t found = divisor(rows, kFewestRows);
    return found == 0 ? AmxShapes::kMost : found;
  }

  template <class Work>
  void cover_by_amx(std::int64_t tile_rows, std::int64_t begin, std::int64_t end,
                    std::int64_t count, const Work& work) {
    if (begin == end) return;
    const AmxShapes shapes{tile_rows, pairs_};
    if (rows_ != tile_rows) shapes.configure();
    rows_ = tile_rows;
    for (std::int64_t vector = 0; vector < count; vector += kAmxVectors) {
      const bool one = count - vector == 1;
      std::int64_t row = begin;
      for (; end - row >= 2 * tile_rows; row += 2 * tile_rows) {
        one ? work.template tile<AmxTile<2, 1>>(shapes, row, vector)
            : work.template tile<AmxTile<2, 2>>(shapes, row, vector);
      }
      if (row == end) continue;
      one ? work.template tile<AmxTile<1, 1>>(shapes, row, vector)
          : work.template tile<AmxTile<1, 2>>(shapes, row, vector);
    }
  }

  std::int64_t pairs_;     // of AMX's registers, 0: it is not used
  std::int64_t rows_ = 0;  // of AMX's registers as they are set up, 0: not yet
};

}  // namespace mnist_train::models::avx512
