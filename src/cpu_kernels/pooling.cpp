#include "cpu_kernels/pooling.h"

#include <algorithm>

namespace mnist_train::cpu_kernels {

namespace {

struct Axis {
  std::int64_t in, out, kernel, stride, padding, dilation;
  bool counts_padding;
};

Window window(std::int64_t begin, std::int64_t end, std::int64_t count) {
  return {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end),
          1.0F / static_cast<float>(count)};
}

std::vector<Window> windows(const Axis& axis) {
  std::vector<Window> all;
  for (std::int64_t i = 0; i < axis.out; ++i) {
    std::int64_t begin = i * axis.stride - axis.padding;
    const std::int64_t end = begin + (axis.kernel - 1) * axis.dilation + 1;
    // As in PyTorch, windows that reach beyond the padding (ceil_mode) do not count that part.
    const std::int64_t padded = std::min(end, axis.in + axis.padding) - begin;
    if (begin < 0) begin += ceil_divide(-begin, axis.dilation) * axis.dilation;
    const std::int64_t inside = std::min(end, axis.in);
    all.push_back(window(begin, inside, axis.counts_padding ? padded : inside - begin));
  }
  return all;
}

std::vector<Window> adaptive_windows(std::int64_t in, std::int64_t out) {
  std::vector<Window> all;
  for (std::int64_t i = 0; i < out; ++i) {
    const std::int64_t begin = i * in / out;
    const std::int64_t end = ceil_divide((i + 1) * in, out);
    all.push_back(window(begin, end, end - begin));
  }
  return all;
}

std::vector<Cover> covers(const std::vector<Window>& windows, std::int64_t in) {
  std::vector<Cover> all(static_cast<std::size_t>(in));
  for (std::size_t out = windows.size(); out-- > 0;) {
    for (std::int32_t i = windows[out].begin; i < windows[out].end; ++i) {
      Cover& cover = all[static_cast<std::size_t>(i)];
      cover.first = static_cast<std::int32_t>(out);
      cover.last = std::max(cover.last, static_cast<std::int32_t>(out) + 1);
    }
  }
  return all;
}

}  // namespace

PoolingPlan::PoolingPlan(const PoolingShape& s)
    : rows_(windows({s.in.height, s.out.height, s.kernel.height, s.stride.height, s.padding.height,
                     s.dilation.height, s.counts_padding})),
      columns_(windows({s.in.width, s.out.width, s.kernel.width, s.stride.width, s.padding.width,
                        s.dilation.width, s.counts_padding})) {
  finish(s.in, s.out, s.dilation, s.kernel.width);
}

PoolingPlan::PoolingPlan(const ValueShape& in, const ValueShape& out)
    : rows_(adaptive_windows(in.height, out.height)),
      columns_(adaptive_windows(in.width, out.width)) {
  finish(in, out, {1, 1}, in.width);
}

void PoolingPlan::finish(const ValueShape& in, const ValueShape& out, Extent dilation,
                         std::int64_t kernel_width) {
  row_covers_ = covers(rows_, in.height);
  column_covers_ = covers(columns_, in.width);
  view_ = {in,
           out,
           kernel_width,
           dilation.height,
           dilation.width,
           rows_.data(),
           columns_.data(),
           row_covers_.data(),
           column_covers_.data()};
}

}  // namespace mnist_train::cpu_kernels
