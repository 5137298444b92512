#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/cpu.h"
#include "base/parallel.h"
#include "cpu_kernels/gradient_bands.h"
#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

/// Rounds to nearest even.
inline void round_to(float value, float& result) { result = value; }
inline void round_to(float value, Bf16Bits& result) { float_to_bf16(&value, 1, &result); }

/// Division of the rows of blocks into parts for threads. Sums that are computed per part and added
/// in order do not depend on the number of threads.
struct RowParts {
  std::int64_t rows;       // per part; fewer in the last part of a block
  std::int64_t per_block;  // parts
  std::int64_t height;     // of a block

  /// Divides blocks into parts of at most `max_rows` rows, aiming for at least kMinParts per batch.
  static RowParts make(std::int64_t blocks, std::int64_t height, std::int64_t max_rows) {
    const std::int64_t rows =
        std::min(max_rows, ceil_divide(height, ceil_divide(kMinParts, blocks)));
    return {rows, ceil_divide(height, rows), height};
  }
  /// Calls `action(part, block, row_begin, row_end)` for one part.
  template <class Action>
  void visit(std::int64_t part, const Action& action) const {
    const std::int64_t y = part % per_block * rows;
    action(part, part / per_block, y, std::min(y + rows, height));
  }
  /// Calls `action` for all parts, in parallel.
  template <class Action>
  void visit_all(std::int64_t blocks, const Action& action) const {
    parallel_for(0, blocks * per_block, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) visit(part, action);
    });
  }
};

/// Receives each part of the output, if possible while it is still cached.
struct RowListener {
  /// Called once before `on_part`, with the number of parts; by then, row 0 of block 0 is computed.
  std::function<void(std::int64_t parts)> on_begin;
  /// Called by any thread, once for each part.
  std::function<void(std::int64_t part, std::int64_t block, std::int64_t row_begin,
                     std::int64_t row_end)>
      on_part;
};

inline constexpr std::int64_t kTileBytes = 48 << 10;  // of a depthwise tile's inputs: fits in L1
inline constexpr std::int64_t kPanelPair = 2;         // panels computed at once with AMX
inline constexpr std::int64_t kPanelsPerPass = 16;    // packed, then multiplied while cached

/// Calls `action(index of the weight in memory, index among packed weights)` for the weights of
/// output words of a depthwise convolution.
template <class Element, class Action>
void for_each_weight(const GatherView& view, std::int64_t word_begin, std::int64_t word_end,
                     const Action& action) {
  constexpr std::int64_t kD = kDepth<Element>;
  for (std::int64_t o = word_begin * kD; o < std::min(word_end * kD, view.out.channels); ++o) {
    for (std::int64_t tap = 0; tap < view.positions; ++tap) {
      action(o * view.positions + tap, (o / kD * view.positions + tap) * kD + o % kD);
    }
  }
}

/// Parameters of a convolution or pooling layer along one axis.
struct GatherAxis {
  template <class Shape>
  static GatherAxis rows(const Shape& s, bool backward) {
    return {s.in.height,     s.out.height,     s.kernel.height,
            s.stride.height, s.padding.height, backward};
  }
  template <class Shape>
  static GatherAxis columns(const Shape& s, bool backward) {
    return {s.in.width, s.out.width, s.kernel.width, s.stride.width, s.padding.width, backward};
  }

  std::int64_t in, out, kernel, stride, padding;
  bool backward;

  /// Returns the taps of an output position (backward: input position), ordered by `Tap::in`.
  std::vector<Tap> taps(std::int64_t position) const {
    std::vector<Tap> taps;
    for (std::int64_t k = 0; k < kernel; ++k) {
      const std::int64_t shift = k - padding;
      const std::int64_t scaled = backward ? position - shift : position * stride + shift;
      if (backward && scaled % stride != 0) continue;
      const std::int64_t index = backward ? scaled / stride : scaled;
      if (scaled < 0 || index >= (backward ? out : in)) continue;
      taps.push_back({static_cast<std::int32_t>(index), static_cast<std::int32_t>(k)});
    }
    if (backward) std::reverse(taps.begin(), taps.end());
    return taps;
  }
};

/// Estimates whether Winograd's algorithm computes a pass faster than a direct sum over all taps;
/// the weight gradient follows the forward pass. Depends on the shape alone, so that results do not
/// depend on the batch size.
template <class Element>
bool should_use_winograd(const ConvolutionShape& s, bool backward) {
  constexpr bool kIsBf16 = kDepth<Element> == 2;
  // Costs per pair of channels, in products.
  constexpr double kTransforms = kIsBf16 ? 350 : 100;  // per tile, shared by all other channels
  constexpr double kWeights = kIsBf16 ? 40 : 8;        // of the transformed weights
  constexpr double kMinGain = 1.1;
  // The larger weights of bf16 tiles would be read from memory, not the L3 cache, for each tile.
  constexpr std::int64_t kMaxPairs = kIsBf16 ? 1 << 16 : 1 << 30;
  const auto is_square = [](const Extent& extent, std::int64_t size) {
    return extent.height == size && extent.width == size;
  };
  if (uses_amx<Element>() || s.depthwise || !is_square(s.kernel, 3) || !is_square(s.stride, 1) ||
      s.in.channels * s.out.channels > kMaxPairs) {
    return false;
  }
  const ValueShape& out = backward ? s.in : s.out;
  const auto taps = [&](std::int64_t size, const GatherAxis& axis) {
    std::size_t count = 0;
    for (std::int64_t i = 0; i < size; ++i) count += axis.taps(i).size();
    return static_cast<std::int64_t>(count);
  };
  const std::int64_t products = taps(out.height, GatherAxis::rows(s, backward)) *
                                taps(out.width, GatherAxis::columns(s, backward));
  const auto positions = [](std::int64_t size) {
    std::int64_t count = 0;
    for (std::int64_t begin = 0; begin < size; begin += kTileOutputs<Element>) {
      count += winograd_side(std::min(size - begin, kTileOutputs<Element>));
    }
    return count;
  };
  const auto channels = [](const ValueShape& shape) { return static_cast<double>(shape.channels); };
  const double cost = static_cast<double>(positions(out.height) * positions(out.width)) +
                      kTransforms *
                          static_cast<double>(winograd_tiles<Element>(out.height) *
                                              winograd_tiles<Element>(out.width)) *
                          (1 / channels(s.in) + 1 / channels(s.out)) +
                      kWeights;
  return static_cast<double>(products) / kDepth<Element> >= kMinGain * cost;
}

/// Computes a convolution's forward pass or its input gradient. Both gather their inputs: even with
/// strides, each pixel of the gradient visits only the taps that contribute to it.
template <class Element>
class Gather {
 public:
  Gather(const ConvolutionShape& s, bool backward)
      : kernels_(kernel_table<Element>()->convolution) {
    constexpr std::int64_t kD = kDepth<Element>;
    view_.in = backward ? s.out : s.in;
    view_.out = backward ? s.in : s.out;
    view_.backward = backward;
    view_.uses_amx = uses_amx<Element>();
    view_.kernel_height = s.kernel.height;
    view_.kernel_width = s.kernel.width;
    const GatherAxis columns = GatherAxis::columns(s, backward);
    add_rows(GatherAxis::rows(s, backward));
    view_.tap_kernel = backward ? -s.stride.width : 1;
    if (s.depthwise) {
      view_.panels = words<Element>(s.out.channels);
      view_.panel_rows = kD;
      view_.positions = s.kernel.height * s.kernel.width;
      add_tiles(columns);
      // The inputs of a forward tile with kMaxColumns columns should fit into an L1 cache.
      const std::int64_t pixels =
          s.kernel.height * ((kMaxColumns - 1) * s.stride.width + s.kernel.width);
      view_.depthwise.words_per_pass =
          std::max<std::int64_t>(2, kTileBytes / (pixels * kImages * 4));
    } else {
      view_.panel_rows =
          choose_panel_rows<Element>(view_.out.channels, /*vectors=*/2, view_.uses_amx);
      view_.panels = ceil_divide(view_.out.channels, view_.panel_rows);
      add_runs(columns);
      if (should_use_winograd<Element>(s, backward)) plan_winograd(s);
    }
    view_.row_begin = row_begin_.data();
    view_.rows = rows_.data();
    view_.run_begin = run_begin_.data();
    view_.runs = runs_.data();
    view_.sequences = sequences_.data();
    view_.sequence_count = static_cast<std::int64_t>(sequences_.size());
  }
  Gather(const Gather&) = delete;
  Gather& operator=(const Gather&) = delete;

  const GatherView& view() const { return view_; }
  /// Size of the packed weights in words; `packed_size` is in elements.
  std::int64_t packed_words() const { return view_.panels * view_.panel_rows * view_.positions; }
  std::int64_t packed_size() const { return packed_words() * kDepth<Element>; }
  /// Computes the output of all blocks. `listener` may be null.
  void compute(const BatchOperands<Element>& operands, const RowListener* listener) const {
    if (!is_panel_major(operands.blocks)) return compute_rows(operands, listener);
    compute_panels(operands);
    if (listener == nullptr) return;
    const RowParts parts = row_parts(operands.blocks);
    listener->on_begin(operands.blocks * parts.per_block);
    parts.visit_all(operands.blocks, listener->on_part);
  }

 private:
  void add_rows(const GatherAxis& axis) {
    row_begin_.push_back(0);
    for (std::int64_t y = 0; y < view_.out.height; ++y) {
      const std::vector<Tap> taps = axis.taps(y);
      rows_.insert(rows_.end(), taps.begin(), taps.end());
      row_begin_.push_back(static_cast<std::int32_t>(rows_.size()));
    }
  }
  /// All taps of a column form one run if each tap alone would fill AMX registers poorly.
  void add_runs(const GatherAxis& axis) {
    const std::int64_t tap_words = words<Element>(view_.in.channels);
    const bool merges = tap_words % kAmxWords != 0;
    run_begin_.push_back(0);
    for (std::int64_t x = 0; x < view_.out.width; ++x) {
      const std::vector<Tap> taps = axis.taps(x);
      const std::size_t taps_per_run = merges ? taps.size() : 1;
      for (std::size_t i = 0; i < taps.size(); i += taps_per_run) {
        const auto count = static_cast<std::int32_t>(taps_per_run);
        const Sequence& sequence = find_or_add_sequence(taps[i].kernel, count);
        runs_.push_back({taps[i].in, count * static_cast<std::int32_t>(tap_words), sequence.start,
                         sequence.step});
      }
      run_begin_.push_back(static_cast<std::int32_t>(runs_.size()));
    }
  }
  /// Returns the sequence of these kernel columns, adding it if it is new.
  const Sequence& find_or_add_sequence(std::int32_t first, std::int32_t count) {
    for (const Sequence& sequence : sequences_) {
      if (sequence.first == first && sequence.count == count) return sequence;
    }
    const std::int64_t size = count * words<Element>(view_.in.channels);
    const std::int64_t step = view_.uses_amx ? round_up(size, kAmxWords) : size;
    const auto start = static_cast<std::int32_t>(view_.positions);
    view_.positions += step * view_.kernel_height;
    return sequences_.emplace_back(Sequence{start, static_cast<std::int32_t>(step), first, count});
  }
  /// Plans Winograd's algorithm, which uses no runs of taps.
  void plan_winograd(const ConvolutionShape& s) {
    const std::int64_t tiles =
        winograd_tiles<Element>(view_.out.height) * winograd_tiles<Element>(view_.out.width);
    WinogradView& plan = view_.winograd;
    plan.top = view_.backward ? 2 - s.padding.height : s.padding.height;
    plan.left = view_.backward ? 2 - s.padding.width : s.padding.width;
    plan.position_size = round_up(view_.in.channels, kDepth<Element>) * kImages + kPositionPadding;
    plan.tile_size = kTilePositions<Element> * plan.position_size;
    plan.tiles_per_pass = std::clamp<std::int64_t>(kBandBytes / 16 / plan.tile_size, 1, tiles);
    view_.positions = kTilePositions<Element> * view_.padded_channels();
    sequences_.clear();
  }
  /// Makes tiles of columns whose taps have the same weights (`stride` apart in the backward pass).
  void add_tiles(const GatherAxis& axis) {
    DepthwiseTiles& plan = view_.depthwise;
    plan.out_step = axis.backward ? axis.stride : 1;
    plan.in_step = axis.backward ? 1 : axis.stride;
    for (std::int64_t x = 0; x < view_.out.width; ++x) {
      const std::vector<Tap> taps = axis.taps(x);
      const auto has_same_taps = [&](std::int64_t column) {
        const std::vector<Tap> others = axis.taps(column);
        return others.size() == taps.size() &&
               (taps.empty() || others.front().kernel == taps.front().kernel);
      };
      if (x >= plan.out_step && has_same_taps(x - plan.out_step)) continue;  // already in a tile
      std::int64_t end = x + plan.out_step;
      while (end < view_.out.width && has_same_taps(end)) end += plan.out_step;
      std::int64_t count = (end - x) / plan.out_step;
      const Tap first = taps.empty() ? Tap{} : taps.front();
      DepthwiseTile tile{static_cast<std::int32_t>(x), 0, first.in, first.kernel,
                         static_cast<std::int32_t>(taps.size())};
      for (std::int64_t tiles = ceil_divide(count, kMaxColumns); tiles > 0; --tiles) {
        tile.count = static_cast<std::int32_t>(ceil_divide(count, tiles));
        tiles_.push_back(tile);
        tile.first += tile.count * static_cast<std::int32_t>(plan.out_step);
        tile.in += tile.count * static_cast<std::int32_t>(plan.in_step);
        count -= tile.count;
      }
    }
    std::ranges::sort(tiles_, {}, &DepthwiseTile::first);
    plan.tiles = tiles_.data();
    plan.count = static_cast<std::int64_t>(tiles_.size());
  }

  bool is_depthwise() const { return view_.depthwise.count > 0; }
  bool uses_winograd() const { return view_.winograd.tiles_per_pass > 0; }
  std::int64_t in_block_bytes() const {
    return view_.in.block_size<Element>() * static_cast<std::int64_t>(sizeof(Element));
  }
  /// Returns the number of output rows whose input remains cached.
  std::int64_t cached_rows() const {
    return std::max<std::int64_t>(1, kBandBytes * view_.out.height / in_block_bytes());
  }
  RowParts row_parts(std::int64_t blocks) const {
    RowParts parts = RowParts::make(blocks, view_.out.height, cached_rows());
    if (uses_winograd()) {  // parts consist of whole tiles
      parts.rows = round_up(parts.rows, kTileOutputs<Element>);
      parts.per_block = ceil_divide(parts.height, parts.rows);
    }
    return parts;
  }
  /// Calls the kernel for a part.
  void gather(const BatchOperands<Element>& operands, const PackedPanels<Element>& panels,
              GatherPart part) const {
    if (uses_winograd()) {
      constexpr std::size_t kLine = 16;  // floats; vectors that span two cache lines are slow
      thread_local std::vector<float> scratch;
      const auto size =
          static_cast<std::size_t>(view_.winograd.tiles_per_pass * view_.winograd.tile_size);
      if (scratch.size() < size + kLine) scratch.resize(size + kLine);
      void* begin = scratch.data();
      std::size_t space = scratch.size() * sizeof(float);
      part.scratch = static_cast<float*>(
          std::align(kLine * sizeof(float), size * sizeof(float), begin, space));
    }
    kernels_.gather(view_, operands, panels, part);
  }
  /// Returns true if all blocks should be multiplied by a few panels at a time, because there is
  /// only one row, or a block stays cached and the weights need more memory than all inputs.
  bool is_panel_major(std::int64_t blocks) const {
    if (is_depthwise() || uses_winograd()) return false;
    const std::int64_t in_words = blocks * view_.in.block_size<Element>() / kDepth<Element>;
    return view_.out.height == 1 ||
           (packed_words() > in_words && cached_rows() >= view_.out.height);
  }
  /// Returns true if kernels should read weights in place instead of packing them, because the
  /// weights form a matrix with contiguous rows that is used only a few times.
  bool reads_in_place(const BatchOperands<Element>& operands) const {
    constexpr std::int64_t kMaxUses = 8 * kDepth<Element>;
    return view_.kernel_height * view_.kernel_width == 1 && !view_.backward &&
           view_.in.channels % kDepth<Element> == 0 &&
           operands.blocks * view_.out.pixels() <= kMaxUses;
  }
  /// Packs panels and multiplies all blocks by them. If the inputs of all blocks fit into the
  /// cache, they remain there; otherwise the panels that are packed together do. Each part of the
  /// range packs all its panels into the same memory, which stays cached.
  void compute_panels(const BatchOperands<Element>& operands) const {
    const bool in_place = reads_in_place(operands);
    const std::int64_t pair_size =
        kPanelPair * view_.panel_rows * view_.positions * kDepth<Element>;
    const std::int64_t pairs = ceil_divide(view_.panels, kPanelPair);
    const bool inputs_fit = operands.blocks * in_block_bytes() <= kBandBytes / 2;
    const std::int64_t step = inputs_fit ? kPanelPair : kPanelsPerPass;
    parallel_for(0, pairs, 1, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t last = std::min(end * kPanelPair, view_.panels);
      for (std::int64_t first = begin * kPanelPair; first < last; first += kPanelsPerPass) {
        const PackedPanels<Element> panels{operands.packed + begin * pair_size, first,
                                           std::min(first + kPanelsPerPass, last), in_place};
        kernels_.pack(view_, operands, panels);
        for (std::int64_t panel = first; panel < panels.end; panel += step) {
          for (std::int64_t block = 0; block < operands.blocks; ++block) {
            gather(operands, panels,
                   {block, 0, view_.out.height, panel, std::min(panel + step, panels.end)});
          }
        }
      }
    });
  }
  /// Packs all panels, then computes bands of rows whose input remains cached.
  void compute_rows(const BatchOperands<Element>& operands, const RowListener* listener) const {
    pack(operands);
    const std::int64_t panels = view_.panels;
    const PackedPanels<Element> packed{operands.packed, 0, panels, false};
    const RowParts parts = row_parts(operands.blocks);
    const std::int64_t count = operands.blocks * parts.per_block;  // parts
    const std::int64_t step = std::max<std::int64_t>(1, cached_rows() / parts.rows);
    std::int64_t first = 0;
    if (listener != nullptr) {  // split by panels, because the other parts wait for the first
      first = std::min(step, parts.per_block);
      const std::int64_t rows = std::min(first * parts.rows, view_.out.height);
      parallel_for(0, ceil_divide(panels, kPanelPair), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     gather(operands, packed,
                            {0, 0, rows, begin * kPanelPair, std::min(end * kPanelPair, panels)});
                   });
      listener->on_begin(count);
      for (std::int64_t part = 0; part < first; ++part) parts.visit(part, listener->on_part);
    }
    parallel_for(first, count, 1, [&](std::int64_t begin, std::int64_t end) {
      while (begin < end) {
        const std::int64_t block = begin / parts.per_block;
        const std::int64_t last = std::min({begin + step, end, (block + 1) * parts.per_block});
        gather(
            operands, packed,
            {block, begin % parts.per_block * parts.rows,
             std::min((last - block * parts.per_block) * parts.rows, view_.out.height), 0, panels});
        for (; begin < last; ++begin) {
          if (listener != nullptr) parts.visit(begin, listener->on_part);
        }
      }
    });
  }
  void pack(const BatchOperands<Element>& operands) const {
    if (is_depthwise()) return pack_depthwise(operands);
    const std::int64_t size = view_.panel_rows * view_.positions * kDepth<Element>;
    parallel_for(0, view_.panels, 1, [&](std::int64_t begin, std::int64_t end) {
      kernels_.pack(view_, operands,
                    {operands.packed + begin * size, begin, end, /*in_place=*/false});
    });
  }
  void pack_depthwise(const BatchOperands<Element>& operands) const {
    constexpr std::int64_t kMinWords = 16;  // per thread
    auto* const packed = reinterpret_cast<float*>(operands.packed);
    std::fill_n(packed, packed_words(), 0.0F);
    parallel_for(0, view_.panels, kMinWords, [&](std::int64_t begin, std::int64_t end) {
      for_each_weight<Element>(view_, begin, end, [&](std::int64_t weight, std::int64_t index) {
        packed[index] = to_float(operands.weights[weight]);
      });
    });
  }

  const ConvolutionKernels<Element>& kernels_;
  GatherView view_{};
  std::vector<std::int32_t> row_begin_, run_begin_;
  std::vector<Tap> rows_;
  std::vector<Run> runs_;
  std::vector<Sequence> sequences_;
  std::vector<DepthwiseTile> tiles_;
};

/// A convolution over blocked images, forward and backward. Does not own tensors. Requires
/// is_supported<Element>().
template <class Element>
class Convolution {
 public:
  explicit Convolution(const ConvolutionShape& shape)
      : kernels_(kernel_table<Element>()->convolution),
        shape_(shape),
        forward_(shape, /*backward=*/false),
        backward_(shape, /*backward=*/true),
        gradient_(gradient_view<Element>(
            shape, should_use_winograd<Element>(shape, /*backward=*/false))) {}

  /// The forward pass; its operand `in` is the input.
  const Gather<Element>& forward() const { return forward_; }
  /// The input gradient; its operand `in` is the gradient of the output.
  const Gather<Element>& backward() const { return backward_; }

  /// Number of fp32 sums for the weight gradient.
  std::int64_t weight_sums() const {
    if (shape_.depthwise) return forward_.packed_words();
    return gradient_.uses_winograd ? tile_view<Element>(gradient_).sums() : gradient_.sums();
  }
  /// Size of the scratch memory for up to `blocks` blocks, in elements.
  std::int64_t gradient_scratch(std::int64_t blocks) const {
    if (shape_.depthwise) return forward_.packed_size() * kLaneFloats;
    std::int64_t size = 0;
    for (const GradientBand& band : gradient_bands(blocks)) {
      size = std::max(size, gradient_.uses_winograd
                                ? kDepth<Element> * tile_band<Element>(shape_, band).scratch
                                : band.scratch);
    }
    return size;
  }
  void weight_gradient(const WeightGradientOperands<Element>& operands) const {
    if (shape_.depthwise) return depthwise_gradient(operands);
    for (const GradientBand& part : gradient_bands(operands.blocks)) {
      const Band<Element> band{gradient_, part, operands};
      parallel_for(
          0, part.blocks() * part.copied_rows, 1,
          [&](std::int64_t begin, std::int64_t end) { kernels_.rearrange(band, begin, end); });
      if (gradient_.uses_winograd) {
        add_winograd_products(band);
        continue;
      }
      parallel_for(0, gradient_.tile_rows(), 1, [&](std::int64_t begin, std::int64_t end) {
        kernels_.add_products(band, begin, end);
      });
    }
    if (!gradient_.uses_winograd) return;
    const WeightGradientView view = tile_view<Element>(gradient_);
    parallel_for(0, shape_.out.channels, 1, [&](std::int64_t begin, std::int64_t end) {
      kernels_.transform_sums(view, operands, begin, end);
    });
  }

 private:
  /// Transforms a rearranged band into fp32 tiles and adds their products.
  void add_winograd_products(const Band<Element>& band) const {
    const WeightGradientView view = tile_view<Element>(gradient_);
    const GradientBand tiles = tile_band<Element>(shape_, band.part);
    WeightGradientOperands<float> operands{};
    operands.blocks = band.operands.blocks;
    operands.last_images = band.operands.last_images;
    operands.scratch = reinterpret_cast<float*>(band.operands.scratch);
    operands.sums = band.operands.sums;
    parallel_for(0, tiles.row_end * view.shape.out.width, 1,
                 [&](std::int64_t begin, std::int64_t end) {
                   kernels_.transform_tiles(band, tiles, begin, end);
                 });
    const ConvolutionKernels<float>& fp32_kernels = kernel_table<float>()->convolution;
    parallel_for(0, view.tile_rows(), 1, [&](std::int64_t begin, std::int64_t end) {
      fp32_kernels.add_products({view, tiles, operands}, begin, end);
    });
  }
  /// Splits the sum over blocks and rows into bands. If possible, their copies fit into the L2
  /// cache, except for one-pixel outputs and Winograd's algorithm.
  std::vector<GradientBand> gradient_bands(std::int64_t blocks) const {
    const std::int64_t row_bytes =
        static_cast<std::int64_t>(sizeof(Element)) *
        (shape_.out.block_size<Element>() / shape_.out.height +
         shape_.in.block_size<Element>() / shape_.in.height * shape_.stride.height);
    const std::int64_t band_bytes = shape_.out.pixels() == 1 ? 4 * kBandBytes : kBandBytes;
    std::int64_t max_rows = std::max<std::int64_t>(1, band_bytes / row_bytes);
    std::int64_t blocks_per_band = std::max<std::int64_t>(1, max_rows / shape_.out.height);
    std::int64_t rows = ceil_divide(shape_.out.height, ceil_divide(shape_.out.height, max_rows));
    if (gradient_.uses_winograd) {  // whole rows of tiles
      blocks_per_band = 1;
      const std::int64_t bytes_per_row = winograd_tiles<Element>(shape_.out.width) *
                                         kTilePositions<Element> *
                                         (shape_.in.channels + shape_.out.channels) * kImages * 4;
      max_rows = std::max<std::int64_t>(1, kTileBandBytes / bytes_per_row);
      rows = kTileOutputs<Element> * std::min(max_rows, winograd_tiles<Element>(shape_.out.height));
    }
    std::vector<GradientBand> bands;
    for (std::int64_t block = 0; block < blocks; block += blocks_per_band) {
      for (std::int64_t y = 0; y < shape_.out.height; y += rows) {
        bands.push_back(
            lay_out<Element>(gradient_, {block, std::min(block + blocks_per_band, blocks), y,
                                         std::min(y + rows, shape_.out.height)}));
      }
    }
    bands.front().overwrites = true;
    bands.back().writes = true;
    return bands;
  }
  /// Threads divide the words among themselves, so no sum is split.
  void depthwise_gradient(const WeightGradientOperands<Element>& operands) const {
    parallel_for(0, words<Element>(shape_.out.channels), 1,
                 [&](std::int64_t begin, std::int64_t end) {
                   const std::int64_t step = forward_.view().depthwise.words_per_pass;
                   for (std::int64_t word = begin; word < end; word += step) {
                     kernels_.depthwise_gradient(forward_.view(), operands, word,
                                                 std::min(word + step, end));
                   }
                   for_each_weight<Element>(
                       forward_.view(), begin, end, [&](std::int64_t weight, std::int64_t index) {
                         round_to(operands.sums[index], operands.weight_gradient[weight]);
                       });
                 });
  }

  const ConvolutionKernels<Element>& kernels_;
  ConvolutionShape shape_;
  Gather<Element> forward_, backward_;
  WeightGradientView gradient_;
};

}  // namespace mnist_train::cpu_kernels
