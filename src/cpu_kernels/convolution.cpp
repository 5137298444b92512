#include "cpu_kernels/convolution.h"

#include <algorithm>

#include "base/cpu.h"
#include "base/parallel.h"
#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

namespace {

constexpr std::int64_t kAmxWords = 16;        // of a register's row, and rows of a register
constexpr std::int64_t kBandBytes = 1 << 20;  // of rows that stay cached: half an L2 cache

/// Returns the groups that kernels see: one for all, with zeros among the weights, if a word would
/// belong to two groups.
std::int64_t visible_groups(const ConvolutionShape& s, std::int64_t depth) {
  return s.group_in() % depth == 0 && s.group_out() % depth == 0 ? s.groups : 1;
}

template <class Element>
bool by_amx() {
  return kDepth<Element> == 2 && cpu_features().amx_bf16;
}

/// Returns the number of rows of sums that are computed at once. Those of AMX fill a register.
/// Others are an even number up to 14: the one for which the rows of all panels, and loading the
/// other factor for each panel, cost least.
std::int64_t choose_panel_rows(std::int64_t rows, bool by_amx) {
  if (by_amx) return kAmxWords;
  constexpr double kLoads = 2;  // rows that take as long as loading the other factor
  std::int64_t best = 0;
  double least = 0;
  for (std::int64_t of_panel = 2; of_panel <= 14; of_panel += 2) {
    const auto panels = static_cast<double>(ceil_divide(rows, of_panel));
    const double cost = panels * (static_cast<double>(of_panel) + kLoads);
    if (best != 0 && cost > least) continue;
    least = cost;
    best = of_panel;
  }
  return best;
}

constexpr std::int64_t kMinParts = 8;       // of a batch, for threads
constexpr std::int64_t kPanelPair = 2;      // panels that AMX computes at once
constexpr std::int64_t kPanelsAtOnce = 16;  // packed, then multiplied while they are cached

/// Returns the number of output rows whose input stays cached.
template <class Element>
std::int64_t cached_rows(const GatherView& view) {
  const std::int64_t in_bytes =
      view.in.block_size<Element>() * static_cast<std::int64_t>(sizeof(Element));
  return std::max<std::int64_t>(1, kBandBytes * view.out.height / in_bytes);
}

template <class Element>
RowParts row_parts(const GatherView& view, std::int64_t blocks) {
  const std::int64_t of_block = ceil_divide(kMinParts, blocks);
  const std::int64_t rows =
      std::min(cached_rows<Element>(view), ceil_divide(view.out.height, of_block));
  return {rows, ceil_divide(view.out.height, rows), view.out.height};
}

/// Returns whether all blocks should be multiplied by some panels, then by the next ones: if all
/// weights take more memory than all inputs, or if there is only one row.
template <class Element>
bool by_panels(const GatherView& view, std::int64_t blocks) {
  if (view.groups != 1) return false;
  const std::int64_t weight_words = view.panels * view.panel_rows * view.positions;
  const std::int64_t in_words = blocks * view.in.block_size<Element>() / kDepth<Element>;
  return view.out.height == 1 ||
         (weight_words > in_words && cached_rows<Element>(view) >= view.out.height);
}

/// Returns whether kernels should read weights in place rather than pack them: if these are a
/// matrix with adjacent channels that is used a few times only.
template <class Element>
bool reads_in_place(const GatherView& view, const WeightsView<Element>& weights,
                    std::int64_t blocks) {
  constexpr std::int64_t kMostUses = 4 * kDepth<Element>;
  return view.groups == 1 && view.kernel_height * view.kernel_width == 1 && weights.channel == 1 &&
         view.group_in % kDepth<Element> == 0 && blocks * view.out.pixels() <= kMostUses;
}

template <class Element>
WeightGradientView gradient_view(const ConvolutionShape& shape) {
  constexpr std::int64_t kLanes = 16;  // of a vector of columns
  WeightGradientView view{};
  view.shape = shape;
  view.shape.groups = visible_groups(shape, kDepth<Element>);
  view.layer_groups = shape.groups;
  view.by_amx = by_amx<Element>();
  const std::int64_t in = view.shape.group_in();
  const std::int64_t stored = words<Element>(in) * kDepth<Element>;
  view.merges_columns =
      view.shape.groups == 1 && shape.dilation.width == 1 && stored % (2 * kLanes) != 0;
  view.column_run = view.merges_columns ? stored : round_up(in, kLanes);
  view.columns = round_up(shape.kernel.width * view.column_run, kLanes);
  // Few columns would fill their vectors badly.
  constexpr std::int64_t kFewColumns = 12;
  view.by_images = kDepth<Element> == 1 && view.merges_columns &&
                   shape.kernel.width * view.column_run <= kFewColumns;
  view.panel_rows =
      view.by_images ? kImageGradientRows : choose_panel_rows(view.shape.group_out(), view.by_amx);
  view.rows = round_up(view.shape.group_out(), view.panel_rows);
  return view;
}

}  // namespace

GatherPlan::GatherPlan(const ConvolutionShape& s, bool backward, std::int64_t depth, bool by_amx) {
  view_.in = backward ? s.out : s.in;
  view_.out = backward ? s.in : s.out;
  view_.groups = visible_groups(s, depth);
  view_.group_in = view_.in.channels / view_.groups;
  view_.group_out = view_.out.channels / view_.groups;
  view_.by_amx = by_amx;
  view_.kernel_height = s.kernel.height;
  view_.kernel_width = s.kernel.width;
  const std::int64_t tap_words = ceil_divide(view_.group_in, depth);
  add_rows({s.in.height, s.out.height, s.kernel.height, s.stride.height, s.padding.height,
            s.dilation.height},
           backward);
  add_runs(
      {s.in.width, s.out.width, s.kernel.width, s.stride.width, s.padding.width, s.dilation.width},
      backward, tap_words, view_.groups == 1 && tap_words % kAmxWords != 0);
  view_.panel_rows = choose_panel_rows(view_.group_out, by_amx);
  view_.panels = ceil_divide(view_.group_out, view_.panel_rows);
  view_.row_begin = row_begin_.data();
  view_.rows = rows_.data();
  view_.run_begin = run_begin_.data();
  view_.runs = runs_.data();
  view_.sequences = sequences_.data();
  view_.sequence_count = static_cast<std::int64_t>(sequences_.size());
  view_.columns = columns_.data();
}

std::vector<Tap> gather_taps(const GatherAxis& axis, bool backward, std::int64_t position) {
  std::vector<Tap> found;
  for (std::int64_t k = 0; k < axis.kernel; ++k) {
    const std::int64_t shift = k * axis.dilation - axis.padding;
    const std::int64_t at = backward ? position - shift : position * axis.stride + shift;
    if (backward && at % axis.stride != 0) continue;
    const std::int64_t in = backward ? at / axis.stride : at;
    if (at < 0 || in >= (backward ? axis.out : axis.in)) continue;
    found.push_back({static_cast<std::int32_t>(in), static_cast<std::int32_t>(k)});
  }
  if (backward) std::reverse(found.begin(), found.end());
  return found;
}

void GatherPlan::add_rows(const GatherAxis& axis, bool backward) {
  row_begin_.push_back(0);
  for (std::int64_t y = 0; y < view_.out.height; ++y) {
    const std::vector<Tap> of_row = gather_taps(axis, backward, y);
    rows_.insert(rows_.end(), of_row.begin(), of_row.end());
    row_begin_.push_back(static_cast<std::int32_t>(rows_.size()));
  }
}

/// Taps of adjacent columns are one run if `merges`.
void GatherPlan::add_runs(const GatherAxis& axis, bool backward, std::int64_t tap_words,
                          bool merges) {
  run_begin_.push_back(0);
  for (std::int64_t x = 0; x < view_.out.width; ++x) {
    const std::vector<Tap> all = gather_taps(axis, backward, x);
    for (std::size_t i = 0; i < all.size();) {
      const std::int32_t in = all[i].in;
      std::vector<std::int32_t> columns{all[i++].kernel};
      while (merges && i < all.size() && all[i].in == all[i - 1].in + 1) {
        columns.push_back(all[i++].kernel);
      }
      const std::int64_t words = tap_words * static_cast<std::int64_t>(columns.size());
      const Sequence& sequence = sequences_[sequence_of(columns, words)];
      runs_.push_back({in, static_cast<std::int32_t>(words), sequence.start, sequence.step});
    }
    run_begin_.push_back(static_cast<std::int32_t>(runs_.size()));
  }
}

/// Returns the index of a sequence of kernel columns, which is added unless there is one.
std::int32_t GatherPlan::sequence_of(const std::vector<std::int32_t>& columns, std::int64_t words) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const auto begin = columns_.begin() + sequences_[i].first;
    if (std::equal(columns.begin(), columns.end(), begin, begin + sequences_[i].count)) {
      return static_cast<std::int32_t>(i);
    }
  }
  const std::int64_t step = view_.by_amx ? round_up(words, kAmxWords) : words;
  sequences_.push_back({static_cast<std::int32_t>(view_.positions), static_cast<std::int32_t>(step),
                        static_cast<std::int32_t>(columns_.size()),
                        static_cast<std::int32_t>(columns.size())});
  columns_.insert(columns_.end(), columns.begin(), columns.end());
  view_.positions += step * view_.kernel_height;
  return static_cast<std::int32_t>(sequences_.size()) - 1;
}

WeightStrides WeightStrides::contiguous(const ConvolutionShape& s) {
  const std::int64_t plane = s.kernel.height * s.kernel.width;
  return {s.group_in() * plane, plane, s.kernel.width, 1};
}

WeightStrides WeightStrides::channels_last(const ConvolutionShape& s) {
  const std::int64_t in = s.group_in();
  return {s.kernel.height * s.kernel.width * in, 1, s.kernel.width * in, in};
}

template <class Element>
Convolution<Element>::Convolution(const ConvolutionShape& shape)
    : kernels_(kernel_table<Element>()->convolution),
      shape_(shape),
      forward_(shape, /*backward=*/false, kDepth<Element>, by_amx<Element>()),
      backward_(shape, /*backward=*/true, kDepth<Element>, by_amx<Element>()),
      gradient_(gradient_view<Element>(shape)) {
  if (is_depthwise(shape)) depthwise_.emplace(shape);
}

template <class Element>
WeightsView<Element> Convolution<Element>::weights_view(const Element* weights,
                                                        const WeightStrides& strides,
                                                        bool backward) const {
  const std::int64_t in = shape_.group_in();
  const std::int64_t out = shape_.group_out();
  return {weights,
          backward ? strides.in : strides.out,
          backward ? strides.out : strides.in,
          strides.kernel_row,
          strides.kernel_column,
          backward ? in : out,
          backward ? out : in,
          !backward};
}

template <class Element>
RowParts Convolution<Element>::forward_parts(std::int64_t blocks) const {
  return row_parts<Element>(forward_.view(), blocks);
}
template <class Element>
RowParts Convolution<Element>::backward_parts(std::int64_t blocks) const {
  return row_parts<Element>(backward_.view(), blocks);
}

template <class Element>
void Convolution<Element>::forward(const BatchOperands<Element>& operands,
                                   const RowListener* listener) const {
  gather(/*backward=*/false, operands, listener);
}
template <class Element>
void Convolution<Element>::backward_data(const BatchOperands<Element>& operands,
                                         const RowListener* listener) const {
  gather(/*backward=*/true, operands, listener);
}

template <class Element>
void Convolution<Element>::gather(bool backward, const BatchOperands<Element>& operands,
                                  const RowListener* listener) const {
  const GatherView& view = (backward ? backward_ : forward_).view();
  if (depthwise_ || !by_panels<Element>(view, operands.blocks)) {
    return gather_rows(backward, operands, listener);
  }
  gather_panels(backward, operands);
  if (listener == nullptr) return;
  listener->begin();
  const RowParts parts = row_parts<Element>(view, operands.blocks);
  parallel_for(0, operands.blocks * parts.of_block, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) listener->take_part(parts, part);
  });
}

/// Returns the operands of one block.
template <class Element>
GatherOperands<Element> of_block(const GatherView& view, const BatchOperands<Element>& all,
                                 std::int64_t block) {
  const std::int64_t out = block * view.out.block_size<Element>();
  return {all.in + block * view.in.block_size<Element>(),     all.packed, all.bias,
          all.addend == nullptr ? nullptr : all.addend + out, all.relu,   all.out + out};
}

/// Packs panels and multiplies all blocks by them while they are cached. A thread packs always to
/// the same memory, which thus stays cached.
template <class Element>
void Convolution<Element>::gather_panels(bool backward,
                                         const BatchOperands<Element>& operands) const {
  const GatherView& view = (backward ? backward_ : forward_).view();
  const WeightsView<Element> weights = weights_view(operands.weights, operands.strides, backward);
  const bool in_place = reads_in_place(view, weights, operands.blocks);
  const std::int64_t size = view.panel_rows * view.positions * kDepth<Element>;
  const auto compute = [&](std::int64_t begin, std::int64_t end, Element* packed) {
    kernels_.pack(view, weights, {begin, end, in_place}, packed);
    for (std::int64_t block = 0; block < operands.blocks; ++block) {
      GatherOperands<Element> of = of_block(view, operands, block);
      of.packed = packed;
      of.packed_begin = begin;
      if (in_place) of.rows = operands.weights;
      of.row_step = weights.row;
      kernels_.gather(view, of, {0, view.out.height, begin, end});
    }
  };
  const std::int64_t pairs = ceil_divide(view.panels, kPanelPair);
  parallel_for(0, pairs, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t last = std::min(end * kPanelPair, view.panels);
    for (std::int64_t at = begin * kPanelPair; at < last; at += kPanelsAtOnce) {
      compute(at, std::min(at + kPanelsAtOnce, last), operands.packed + begin * kPanelPair * size);
    }
  });
}

template <class Element>
void Convolution<Element>::pack(bool backward, const BatchOperands<Element>& operands) const {
  if (depthwise_) return depthwise_->pack(operands.weights, operands.strides, operands.packed);
  const GatherView& view = (backward ? backward_ : forward_).view();
  const WeightsView<Element> weights = weights_view(operands.weights, operands.strides, backward);
  const std::int64_t size = view.panel_rows * view.positions * kDepth<Element>;
  parallel_for(0, view.groups * view.panels, 1, [&](std::int64_t begin, std::int64_t end) {
    kernels_.pack(view, weights, {begin, end, /*in_place=*/false}, operands.packed + begin * size);
  });
}

/// Packs all panels, then computes bands of rows whose input stays cached.
template <class Element>
void Convolution<Element>::gather_rows(bool backward, const BatchOperands<Element>& operands,
                                       const RowListener* listener) const {
  const GatherView& view = (backward ? backward_ : forward_).view();
  const std::int64_t panels = depthwise_ ? words<Element>(view.out.channels) : view.panels;
  pack(backward, operands);
  const auto compute = [&](std::int64_t block, const GatherPart& part) {
    const GatherOperands<Element> of = of_block(view, operands, block);
    depthwise_ ? depthwise_->sum(backward, of, part) : kernels_.gather(view, of, part);
  };
  const RowParts parts = row_parts<Element>(view, operands.blocks);
  const std::int64_t at_once = std::max<std::int64_t>(1, cached_rows<Element>(view) / parts.rows);
  std::int64_t first = 0;
  if (listener != nullptr) {  // the first parts in panels, since all others wait for them
    first = std::min(at_once, parts.of_block);
    const std::int64_t rows = std::min(first * parts.rows, view.out.height);
    const std::int64_t pairs = ceil_divide(panels, kPanelPair);
    parallel_for(0, pairs, 1, [&](std::int64_t begin, std::int64_t end) {
      compute(0, {0, rows, begin * kPanelPair, std::min(end * kPanelPair, panels)});
    });
    listener->begin();
    for (std::int64_t part = 0; part < first; ++part) listener->take_part(parts, part);
  }
  parallel_for(
      first, operands.blocks * parts.of_block, 1, [&](std::int64_t begin, std::int64_t end) {
        while (begin < end) {
          const std::int64_t block = begin / parts.of_block;
          const std::int64_t last = std::min({begin + at_once, end, (block + 1) * parts.of_block});
          compute(block, {begin % parts.of_block * parts.rows,
                          std::min((last - block * parts.of_block) * parts.rows, view.out.height),
                          0, panels});
          for (; begin < last; ++begin) {
            if (listener != nullptr) listener->take_part(parts, begin);
          }
        }
      });
}

template <class Element>
std::vector<GradientBand> Convolution<Element>::gradient_bands(std::int64_t blocks) const {
  const std::int64_t row_bytes =
      static_cast<std::int64_t>(sizeof(Element)) *
      (shape_.out.block_size<Element>() / shape_.out.height +
       shape_.in.block_size<Element>() / shape_.in.height * shape_.stride.height);
  const std::int64_t rows = std::max<std::int64_t>(1, kBandBytes / row_bytes);
  std::vector<GradientBand> bands;
  if (rows >= shape_.out.height) {
    const std::int64_t most = rows / shape_.out.height;
    for (std::int64_t block = 0; block < blocks; block += most) {
      bands.push_back({block, std::min(block + most, blocks), 0, shape_.out.height});
    }
    return bands;
  }
  const std::int64_t parts = ceil_divide(shape_.out.height, rows);
  const std::int64_t of_part = ceil_divide(shape_.out.height, parts);
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (std::int64_t y = 0; y < shape_.out.height; y += of_part) {
      bands.push_back({block, block + 1, y, std::min(y + of_part, shape_.out.height)});
    }
  }
  return bands;
}

template <class Element>
std::int64_t Convolution<Element>::gradient_scratch(const std::vector<GradientBand>& bands) const {
  if (depthwise_) return depthwise_->gradient_scratch();
  std::int64_t size = 0;
  for (const GradientBand& band : bands) {
    size = std::max(size, kernels_.gradient_scratch(gradient_, band));
  }
  return size;
}

template <class Element>
void Convolution<Element>::weight_gradient(const std::vector<GradientBand>& bands,
                                           const WeightGradientOperands<Element>& operands) const {
  const GradientFactors<Element> factors{operands.in, operands.gradient, operands.scratch};
  if (depthwise_) {
    return depthwise_->weight_gradient(operands.blocks, factors, operands.sums, operands.strides,
                                       operands.weight_gradient);
  }
  const bool writes_rows =
      operands.strides.in == 1 && gradient_.shape.groups == gradient_.layer_groups;
  for (const GradientBand& of_all : bands) {
    GradientBand band = of_all;
    band.block_end = std::min(band.block_end, operands.blocks);
    const bool is_last = band.row_end == shape_.out.height && band.block_end == operands.blocks;
    const GradientTarget<Element> target{
        operands.sums, &of_all == bands.data(),
        is_last && writes_rows ? operands.weight_gradient : nullptr, operands.strides};
    parallel_for(0, kernels_.gradient_rows(gradient_, band), 1,
                 [&](std::int64_t begin, std::int64_t end) {
                   kernels_.rearrange(gradient_, band, factors, begin, end);
                 });
    parallel_for(0, gradient_.tile_count(), 1, [&](std::int64_t begin, std::int64_t end) {
      kernels_.add_products(gradient_, band, factors, target, begin, end);
    });
    if (is_last) break;
  }
  if (writes_rows) return;
  parallel_for(0, shape_.out.channels, 1, [&](std::int64_t begin, std::int64_t end) {
    kernels_.write_gradient(gradient_, operands.sums, operands.strides, begin, end,
                            operands.weight_gradient);
  });
}

template class Convolution<float>;
template class Convolution<Bf16Bits>;

}  // namespace mnist_train::cpu_kernels
