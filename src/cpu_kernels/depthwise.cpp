#include "cpu_kernels/depthwise.h"

#include <algorithm>

#include "base/parallel.h"
#include "cpu_kernels/convolution.h"
#include "cpu_kernels/elements.h"
#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

namespace {

constexpr std::int64_t kPartBytes = 48 << 10;  // of inputs of a tile: an L1 cache
constexpr std::int64_t kPackedWords = 16;      // at least, by a thread

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
    for (const Tap& tap : gather_taps(axis, view_.backward, y)) {
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
  const auto same_weights = [](const Tap& a, const Tap& b) { return a.kernel == b.kernel; };
  for (std::int64_t x = 0; x < view_.out.width; ++x) {
    const std::vector<Tap> taps = gather_taps(axis, view_.backward, x);
    const auto has_same_taps = [&](std::int64_t column) {
      const std::vector<Tap> others = gather_taps(axis, view_.backward, column);
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
std::int64_t DepthwisePlan<Element>::add_runs(const std::vector<Tap>& taps,
                                              std::int64_t pixel_size) {
  const std::size_t before = runs_.size();
  for (const Tap& tap : taps) {
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
    : kernels_(kernel_table<Element>()->depthwise),
      shape_(shape),
      forward_(shape, /*backward=*/false),
      backward_(shape, /*backward=*/true) {}

template <class Element>
template <class Action>
void Depthwise<Element>::for_each_weight(const WeightStrides& strides, std::int64_t word_begin,
                                         std::int64_t word_end, const Action& action) const {
  constexpr std::int64_t kD = kDepth<Element>;
  const auto& [height, width] = shape_.kernel;
  for (std::int64_t o = word_begin * kD; o < std::min(word_end * kD, shape_.out.channels); ++o) {
    std::int64_t at = o / kD * height * width * kD + o % kD;
    for (std::int64_t ky = 0; ky < height; ++ky) {
      for (std::int64_t kx = 0; kx < width; ++kx, at += kD) {
        action(o * strides.out + ky * strides.kernel_row + kx * strides.kernel_column, at);
      }
    }
  }
}

template <class Element>
void Depthwise<Element>::pack(const Element* weights, const WeightStrides& strides,
                              Element* packed) const {
  auto* const to = reinterpret_cast<float*>(packed);
  std::fill_n(to, this->weights(), 0.0F);
  parallel_for(0, words<Element>(shape_.out.channels), kPackedWords,
               [&](std::int64_t begin, std::int64_t end) {
                 for_each_weight(strides, begin, end, [&](std::int64_t from, std::int64_t at) {
                   widen(weights + from, 1, to + at);
                 });
               });
}

/// Threads share words, which does not change any sum.
template <class Element>
void Depthwise<Element>::weight_gradient(std::int64_t blocks,
                                         const GradientFactors<Element>& factors, float* sums,
                                         const WeightStrides& strides, Element* gradient) const {
  const DepthwiseView& view = forward_.view();
  parallel_for(0, words<Element>(shape_.out.channels), 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t word = begin; word < end; word += view.part_words) {
                   kernels_.weight_gradient(view, blocks, factors, word,
                                            std::min(word + view.part_words, end), sums);
                 }
                 for_each_weight(strides, begin, end, [&](std::int64_t to, std::int64_t at) {
                   round_to(sums + at, 1, gradient + to);
                 });
               });
}

template class DepthwisePlan<float>;
template class DepthwisePlan<Bf16Bits>;
template class Depthwise<float>;
template class Depthwise<Bf16Bits>;

}  // namespace mnist_train::cpu_kernels
