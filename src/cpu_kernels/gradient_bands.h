#pragma once

#include <algorithm>
#include <cstdint>

#include "base/cpu.h"
#include "cpu_kernels/kernels.h"

/// Plans for weight gradients: the layouts of their sums and of the factors in a band of rows.
namespace mnist_train::cpu_kernels {

inline constexpr std::int64_t kAmxWords = 16;        // words per register row; rows per register
inline constexpr std::int64_t kBandBytes = 1 << 20;  // of rows that stay cached: half an L2 cache
inline constexpr std::int64_t kTileBandBytes = 8 << 20;  // of transformed tiles: in the L3 cache

template <class Element>
bool uses_amx() {
  return kDepth<Element> == 2 && cpu_features().amx_bf16;
}

/// Returns the number of rows of sums, each of `vectors` vectors, to compute at once: the multiple
/// of kDepth that minimises the cost of computing all rows plus that of loading the other factor
/// once per panel. With AMX, the rows fill a register.
template <class Element>
std::int64_t choose_panel_rows(std::int64_t rows, std::int64_t vectors, bool uses_amx) {
  if (uses_amx) return kAmxWords;
  constexpr std::int64_t kLoads = 1;  // cost of loading the other factor, in rows
  const auto cost = [&](std::int64_t panel_rows) {
    return ceil_divide(rows, panel_rows) * (panel_rows + kLoads);
  };
  std::int64_t best = kDepth<Element>;
  for (std::int64_t panel_rows = best; panel_rows <= max_panel_rows(vectors);
       panel_rows += kDepth<Element>) {
    if (cost(panel_rows) <= cost(best)) best = panel_rows;
  }
  return best;
}

template <class Element>
WeightGradientView gradient_view(const ConvolutionShape& shape, bool uses_winograd) {
  constexpr std::int64_t kLanes = 16;  // columns per vector
  WeightGradientView view{};
  view.shape = shape;
  view.uses_amx = uses_amx<Element>();
  view.uses_winograd = uses_winograd;
  const std::int64_t padded_channels = round_up(shape.in.channels, kDepth<Element>);
  view.merges_columns = !uses_winograd && padded_channels % (2 * kLanes) != 0;
  view.column_stride = view.merges_columns ? padded_channels : round_up(shape.in.channels, kLanes);
  view.columns = round_up(shape.kernel.width * view.column_stride, kLanes);
  // Few columns would fill vectors poorly.
  constexpr std::int64_t kMaxImageColumns = 12;
  view.image_lanes = kDepth<Element> == 1 && view.merges_columns &&
                     shape.kernel.width * view.column_stride <= kMaxImageColumns;
  const std::int64_t vectors = (view.merges_columns ? view.columns : view.column_stride) / kLanes;
  // Single vectors keep too few sums in registers, so three are better than two and one.
  const bool takes_three = !view.uses_amx && vectors % 2 == 1 && vectors % 3 == 0;
  view.tile_vectors = takes_three ? 3 : std::min<std::int64_t>(vectors, 2);
  view.panel_rows = view.image_lanes ? kImageGradientRows
                                     : choose_panel_rows<Element>(shape.out.channels,
                                                                  view.tile_vectors, view.uses_amx);
  view.rows = round_up(shape.out.channels, view.panel_rows);
  return view;
}

/// Returns the view of the sums over Winograd tiles, in which the positions of a tile take the
/// place of kernel rows, and tiles the place of pixels.
template <class Element>
WeightGradientView tile_view(const WeightGradientView& direct) {
  WeightGradientView view = direct;
  ValueShape& out = view.shape.out;
  out.height = winograd_tiles<Element>(out.height);
  out.width = winograd_tiles<Element>(out.width);
  view.shape.in = {direct.shape.in.channels, out.height, out.width};
  view.shape.kernel = {kTilePositions<Element>, 1};
  view.shape.padding = {0, 0};
  view.merges_columns = true;
  view.columns = view.column_stride;
  return view;
}

/// Returns the band of transformed tiles for `source`, a laid-out band of one block. In scratch
/// memory, the tiles, which are fp32, follow the factors of `source`.
template <class Element>
GradientBand tile_band(const ConvolutionShape& s, const GradientBand& source) {
  constexpr std::int64_t kSlack = kSlackBytes / sizeof(float);
  const Extent outputs{source.row_end - source.row_begin, s.out.width};
  const Extent tiles{winograd_tiles<Element>(outputs.height),
                     winograd_tiles<Element>(outputs.width)};
  const std::int64_t count = tiles.height * tiles.width;
  GradientBand band{source.block_begin, source.block_end, 0, tiles.height};
  band.overwrites = source.overwrites;
  band.tile_side = kTileSide<Element>;
  band.outputs = outputs;
  band.a_begin = ceil_divide(source.scratch, kDepth<Element>);
  band.a_pixel = s.out.pixel_size<Element>();
  band.a_position = count * band.a_pixel + kPositionPadding;
  band.b_begin = band.a_begin + kTilePositions<Element> * band.a_position + kSlack;
  band.b_word = source.b_word / kDepth<Element>;
  band.b_pixel = source.b_pixel;
  band.b_row = tiles.width * band.b_pixel;
  band.b_position = count * band.b_pixel + kPositionPadding;
  band.scratch = band.b_begin + kTilePositions<Element> * band.b_position + kSlack;
  return band;
}

/// Returns the band with the layout of its factors filled in.
template <class Element>
GradientBand lay_out(const WeightGradientView& view, GradientBand band) {
  constexpr std::int64_t kD = kDepth<Element>;
  constexpr std::int64_t kLine = 16 * kD;  // elements per cache line
  // Space after each factor, for registers that extend beyond it.
  constexpr std::int64_t kSlack = kSlackBytes / sizeof(Element);
  const ConvolutionShape& s = view.shape;
  const std::int64_t rows = band.row_end - band.row_begin;
  const std::int64_t in_end =
      (band.row_end - 1) * s.stride.height - s.padding.height + s.kernel.height;
  band.in_begin = std::max<std::int64_t>(0, band.row_begin * s.stride.height - s.padding.height);
  band.in_rows = std::max<std::int64_t>(0, std::min(s.in.height, in_end) - band.in_begin);
  const bool copies_gradient = kD == 2 && !view.uses_winograd;
  band.copied_rows = band.in_rows + (copies_gradient ? rows : 0);
  band.a_pixel = s.out.pixel_size<Element>();
  band.a_block = kD == 1 ? s.out.block_size<Element>() : rows * s.out.width * band.a_pixel;
  // An odd number of cache lines; otherwise a column's words would map to few cache sets.
  const auto odd_lines = [&](std::int64_t size) { return (ceil_divide(size, kLine) | 1) * kLine; };
  const std::int64_t channels = round_up(s.in.channels, kD);
  if (view.merges_columns) {
    const std::int64_t padded_width = (s.out.width - 1) * s.stride.width + s.kernel.width;
    band.left = s.padding.width;
    band.right = std::max<std::int64_t>(0, padded_width - band.left - s.in.width);
    const std::int64_t width = band.left + s.in.width + band.right;
    band.b_pixel = channels * (view.image_lanes ? kImages : kD);
    band.b_word = odd_lines(width * band.b_pixel);
    band.b_row = view.image_lanes ? width * band.b_pixel : kImageWords<Element> * band.b_word;
  } else {
    band.b_word = odd_lines(channels * kD);
    band.b_pixel = kImageWords<Element> * band.b_word;
    band.b_row = s.in.width * band.b_pixel;
  }
  band.b_block = band.in_rows * band.b_row;
  band.b_begin = copies_gradient ? band.blocks() * band.a_block + kSlack : 0;
  band.scratch = band.b_begin + band.blocks() * band.b_block + kSlack;
  return band;
}

}  // namespace mnist_train::cpu_kernels
