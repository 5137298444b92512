#include "cpu_kernels/convolution.h"

#include <algorithm>

#include "base/cpu.h"
#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

namespace {

constexpr std::int64_t kAmxWords = 16;            // of a register's row, and rows of a register
constexpr std::int64_t kGradientBytes = 1 << 20;  // of the rows of a band, half an L2 cache

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

template <class Element>
WeightGradientView gradient_view(const ConvolutionShape& shape) {
  constexpr std::int64_t kLanes = 16;  // of a vector of columns
  WeightGradientView view{};
  view.shape = shape;
  view.shape.groups = visible_groups(shape, kDepth<Element>);
  view.by_amx = by_amx<Element>();
  const std::int64_t in = view.shape.group_in();
  const std::int64_t stored = words<Element>(in) * kDepth<Element>;
  view.merges_columns =
      view.shape.groups == 1 && shape.dilation.width == 1 && stored % (2 * kLanes) != 0;
  view.column_run = view.merges_columns ? stored : round_up(in, kLanes);
  view.columns = round_up(shape.kernel.width * view.column_run, kLanes);
  view.panel_rows = choose_panel_rows(view.shape.group_out(), view.by_amx);
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

/// Returns the taps of one output position, ordered by input position.
std::vector<GatherPlan::Tap> GatherPlan::taps(const Axis& axis, bool backward,
                                              std::int64_t position) {
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

void GatherPlan::add_rows(const Axis& axis, bool backward) {
  row_begin_.push_back(0);
  for (std::int64_t y = 0; y < view_.out.height; ++y) {
    for (const Tap& tap : taps(axis, backward, y)) rows_.push_back({tap.in, tap.kernel});
    row_begin_.push_back(static_cast<std::int32_t>(rows_.size()));
  }
}

/// Taps of adjacent columns are one run if `merges`.
void GatherPlan::add_runs(const Axis& axis, bool backward, std::int64_t tap_words, bool merges) {
  run_begin_.push_back(0);
  for (std::int64_t x = 0; x < view_.out.width; ++x) {
    const std::vector<Tap> all = taps(axis, backward, x);
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
    : kernels_(*convolution_kernels<Element>()),
      shape_(shape),
      forward_(shape, /*backward=*/false, kDepth<Element>, by_amx<Element>()),
      backward_(shape, /*backward=*/true, kDepth<Element>, by_amx<Element>()),
      gradient_(gradient_view<Element>(shape)) {}

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
void Convolution<Element>::pack_forward(const Element* weights, const WeightStrides& strides,
                                        Element* packed) const {
  kernels_.pack(forward_.view(), weights_view(weights, strides, false), packed);
}

template <class Element>
void Convolution<Element>::pack_backward(const Element* weights, const WeightStrides& strides,
                                         Element* packed) const {
  kernels_.pack(backward_.view(), weights_view(weights, strides, true), packed);
}

template <class Element>
void Convolution<Element>::forward(const GatherOperands<Element>& operands,
                                   const GatherPart& part) const {
  kernels_.gather(forward_.view(), operands, part);
}

template <class Element>
void Convolution<Element>::backward_data(const GatherOperands<Element>& operands,
                                         const GatherPart& part) const {
  kernels_.gather(backward_.view(), operands, part);
}

template <class Element>
std::vector<GradientBand> Convolution<Element>::gradient_bands(std::int64_t blocks) const {
  const std::int64_t row_bytes =
      static_cast<std::int64_t>(sizeof(Element)) *
      (shape_.out.block_size<Element>() / shape_.out.height +
       shape_.in.block_size<Element>() / shape_.in.height * shape_.stride.height);
  const std::int64_t rows = std::max<std::int64_t>(1, kGradientBytes / row_bytes);
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
  std::int64_t size = 0;
  for (const GradientBand& band : bands) {
    size = std::max(size, kernels_.gradient_scratch(gradient_, band));
  }
  return size;
}

template <class Element>
void Convolution<Element>::add_weight_gradient(const GradientBand& band, const Element* in,
                                               const Element* gradient, Element* scratch,
                                               float* sums) const {
  kernels_.add_weight_gradient(gradient_, band, in, gradient, scratch, sums);
}

template <class Element>
void Convolution<Element>::write_weight_gradient(const float* sums, const WeightStrides& strides,
                                                 Element* gradient) const {
  const ConvolutionShape& seen = gradient_.shape;
  const std::int64_t in = shape_.group_in();
  std::vector<Element> rounded(static_cast<std::size_t>(in));
  for (std::int64_t o = 0; o < shape_.out.channels; ++o) {
    const std::int64_t first_in = o / shape_.group_out() * in;  // of all channels
    const std::int64_t seen_group = o / seen.group_out();
    for (std::int64_t ky = 0; ky < seen.kernel.height; ++ky) {
      const float* const row =
          sums + (seen_group * seen.kernel.height + ky) * gradient_.rows * gradient_.columns +
          o % seen.group_out() * gradient_.columns + first_in % seen.group_in();
      for (std::int64_t kx = 0; kx < seen.kernel.width; ++kx) {
        Element* const to =
            gradient + o * strides.out + ky * strides.kernel_row + kx * strides.kernel_column;
        const float* const from = row + kx * gradient_.column_run;
        if (strides.in == 1) {
          kernels_.round(from, in, to);
        } else {
          kernels_.round(from, in, rounded.data());
          for (std::int64_t c = 0; c < in; ++c) to[c * strides.in] = rounded[c];
        }
      }
    }
  }
}

template class Convolution<float>;
template class Convolution<Bf16Bits>;

}  // namespace mnist_train::cpu_kernels
