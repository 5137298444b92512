#include "cpu_kernels/depthwise.h"

#include <algorithm>

#include "base/cpu.h"
#include "base/parallel.h"
#include "cpu_kernels/convolution.h"
#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

namespace {

constexpr std::int64_t kPartBytes = 48 << 10;  // of inputs of a tile: an L1 cache
constexpr std::int64_t kLaneFloats = 16;

void widen(float from, float& to) { to = from; }
void widen(Bf16Bits from, float& to) { bf16_to_float(&from, 1, &to); }
void round_to(float from, float& to) { to = from; }
void round_to(float from, Bf16Bits& to) { float_to_bf16(&from, 1, &to); }

}  // namespace

template <class Element>
DepthwisePlan<Element>::DepthwisePlan(const ConvolutionShape& s, bool backward) {
  view_.in = backward ? s.out : s.in;
  view_.out = backward ? s.in : s.out;
  view_.backward = backward;
  view_.multiple = s.group_out();
  view_.kernel_taps = s.kernel.height * s.kernel.width;
  // Of a tile with the most columns, forward.
  const std::int64_t columns =
      (kMostColumns - 1) * s.stride.width + (s.kernel.width - 1) * s.dilation.width + 1;
  const std::int64_t word_bytes = columns * s.kernel.height * kWordSize<Element> * sizeof(Element);
  view_.part_words = std::max<std::int64_t>(2, kPartBytes / word_bytes);
  add_rows(s);
  add_columns(s);
  view_.row_begin = row_begin_.data();
  view_.row_taps = row_taps_.data();
  view_.tiles = tiles_.data();
  view_.tile_count = static_cast<std::int64_t>(tiles_.size());
  view_.runs = runs_.data();
}

template <class Element>
void DepthwisePlan<Element>::add_rows(const ConvolutionShape& s) {
  const GatherAxis axis{s.in.height,     s.out.height,     s.kernel.height,
                        s.stride.height, s.padding.height, s.dilation.height};
  const std::int64_t row_size = view_.in.block_size<Element>() / view_.in.height;
  row_begin_.push_back(0);
  for (std::int64_t y = 0; y < view_.out.height; ++y) {
    for (const GatherTap& tap : gather_taps(axis, view_.backward, y)) {
      row_taps_.push_back({tap.in * row_size, tap.kernel * s.kernel.width});
    }
    row_begin_.push_back(static_cast<std::int32_t>(row_taps_.size()));
  }
}

/// Columns whose taps have the same weights are computed together. Backward, they are a stride
/// apart.
template <class Element>
void DepthwisePlan<Element>::add_columns(const ConvolutionShape& s) {
  const GatherAxis axis{s.in.width,     s.out.width,     s.kernel.width,
                        s.stride.width, s.padding.width, s.dilation.width};
  const std::int64_t pixel_size = view_.in.block_size<Element>() / view_.in.pixels();
  view_.tile_step = view_.backward ? s.stride.width : 1;
  view_.in_step = (view_.backward ? 1 : s.stride.width) * pixel_size;
  view_.weight_step = view_.backward ? -1 : 1;
  const auto same_weights = [](const GatherTap& a, const GatherTap& b) {
    return a.kernel == b.kernel;
  };
  for (std::int64_t x = 0; x < view_.out.width; ++x) {
    const std::vector<GatherTap> taps = gather_taps(axis, view_.backward, x);
    const auto has_same_taps = [&](std::int64_t column) {
      const std::vector<GatherTap> others = gather_taps(axis, view_.backward, column);
      return std::equal(taps.begin(), taps.end(), others.begin(), others.end(), same_weights);
    };
    if (x >= view_.tile_step && has_same_taps(x - view_.tile_step)) continue;  // is in a tile
    std::int64_t count = 1;
    while (x + count * view_.tile_step < view_.out.width &&
           has_same_taps(x + count * view_.tile_step)) {
      ++count;
    }
    add_tiles(x, count, add_runs(taps, pixel_size));
  }
  std::sort(tiles_.begin(), tiles_.end(),
            [](const DepthwiseTile& a, const DepthwiseTile& b) { return a.first < b.first; });
}

/// Returns the number of runs.
template <class Element>
std::int64_t DepthwisePlan<Element>::add_runs(const std::vector<GatherTap>& taps,
                                              std::int64_t pixel_size) {
  const std::size_t before = runs_.size();
  for (const GatherTap& tap : taps) {
    const std::int64_t in = tap.in * pixel_size;
    if (runs_.size() > before) {
      DepthwiseRun& run = runs_.back();
      if (run.taps < kMostTapsOfRun && in == run.in + run.taps * view_.in_step &&
          tap.kernel == run.weight + run.taps * view_.weight_step) {
        ++run.taps;
        continue;
      }
    }
    runs_.push_back({in, tap.kernel, 1});
  }
  return static_cast<std::int64_t>(runs_.size() - before);
}

/// Adds tiles of columns from `first`, whose runs are the last ones.
template <class Element>
void DepthwisePlan<Element>::add_tiles(std::int64_t first, std::int64_t count, std::int64_t runs) {
  std::size_t begin = runs_.size() - static_cast<std::size_t>(runs);
  for (std::int64_t tiles = ceil_divide(count, kMostColumns); tiles > 0; --tiles) {
    const std::int64_t columns = ceil_divide(count, tiles);
    tiles_.push_back({static_cast<std::int32_t>(first), static_cast<std::int32_t>(columns),
                      static_cast<std::int32_t>(begin), static_cast<std::int32_t>(runs_.size())});
    first += columns * view_.tile_step;
    count -= columns;
    if (tiles == 1) break;
    // Runs of the next tile: the same, further to the right.
    for (std::int64_t i = 0; i < runs; ++i, ++begin) {
      DepthwiseRun run = runs_[begin];
      run.in += columns * view_.in_step;
      runs_.push_back(run);
    }
  }
}

template <class Element>
Depthwise<Element>::Depthwise(const ConvolutionShape& shape)
    : kernels_(*depthwise_kernels<Element>()),
      shape_(shape),
      forward_(shape, /*backward=*/false),
      backward_(shape, /*backward=*/true) {}

template <class Element>
template <class Action>
void Depthwise<Element>::for_each_weight(std::int64_t out_stride, std::int64_t row_stride,
                                         std::int64_t column_stride, const Action& action) const {
  constexpr std::int64_t kD = kDepth<Element>;
  const std::int64_t taps = forward_.view().kernel_taps;
  for (std::int64_t o = 0; o < shape_.out.channels; ++o) {
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const std::int64_t ky = tap / shape_.kernel.width;
      const std::int64_t kx = tap % shape_.kernel.width;
      action(o * out_stride + ky * row_stride + kx * column_stride,
             (o / kD * taps + tap) * kD + o % kD);
    }
  }
}

template <class Element>
void Depthwise<Element>::pack(const Element* weights, std::int64_t out_stride,
                              std::int64_t row_stride, std::int64_t column_stride,
                              Element* packed) const {
  auto* const to = reinterpret_cast<float*>(packed);
  std::fill_n(to, this->weights(), 0.0F);
  for_each_weight(out_stride, row_stride, column_stride,
                  [&](std::int64_t from, std::int64_t at) { widen(weights[from], to[at]); });
}

/// All panels are computed with the first.
template <class Element>
void Depthwise<Element>::forward(const GatherOperands<Element>& operands,
                                 const GatherPart& part) const {
  if (part.panel_begin != 0) return;
  kernels_.sum(forward_.view(), operands, part.row_begin, part.row_end);
}

template <class Element>
void Depthwise<Element>::backward_data(const GatherOperands<Element>& operands,
                                       const GatherPart& part) const {
  if (part.panel_begin != 0) return;
  kernels_.sum(backward_.view(), operands, part.row_begin, part.row_end);
}

/// Bands are blocks: more than one if they have few pixels.
template <class Element>
std::vector<GradientBand> Depthwise<Element>::gradient_bands(std::int64_t blocks) const {
  const std::int64_t most = ceil_divide(kLanePixels, shape_.out.pixels());
  std::vector<GradientBand> bands;
  for (std::int64_t block = 0; block < blocks; block += most) {
    bands.push_back({block, std::min(block + most, blocks), 0, shape_.out.height});
  }
  return bands;
}

template <class Element>
std::int64_t Depthwise<Element>::gradient_scratch() const {
  return weights() * kLaneFloats * kDepth<Element>;
}

/// Threads share parts of words, which does not change any
/// sum.
template <class Element>
void Depthwise<Element>::add_weight_gradient(const GradientBand& band, const Element* in,
                                             const Element* gradient, Element* scratch,
                                             float* sums) const {
  const std::int64_t count = words<Element>(shape_.out.channels);
  const std::int64_t of_word = weights() / count * kLaneFloats;
  const std::int64_t step = forward_.view().part_words;
  auto* const lanes = reinterpret_cast<float*>(scratch);
  parallel_for(0, ceil_divide(count, step), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t word = begin * step; word < std::min(end * step, count); word += step) {
      kernels_.add_weight_gradient(
          forward_.view(), {band.block_begin, band.block_end, word, std::min(word + step, count)},
          in, gradient, lanes + word * of_word, sums);
    }
  });
}

template <class Element>
void Depthwise<Element>::write_weight_gradient(const float* sums, std::int64_t out_stride,
                                               std::int64_t row_stride, std::int64_t column_stride,
                                               Element* gradient) const {
  for_each_weight(out_stride, row_stride, column_stride,
                  [&](std::int64_t to, std::int64_t at) { round_to(sums[at], gradient[to]); });
}

template class DepthwisePlan<float>;
template class DepthwisePlan<Bf16Bits>;
template class Depthwise<float>;
template class Depthwise<Bf16Bits>;

}  // namespace mnist_train::cpu_kernels
