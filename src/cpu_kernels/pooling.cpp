#include "cpu_kernels/pooling.h"

#include <algorithm>

namespace mnist_train::cpu_kernels {

namespace {

struct Axis {
  std::int64_t in, out, kernel, stride, padding, dilation;
  bool counts_padding;
};

/// Input positions of an output position: from `begin` to below `end`, in steps of the dilation.
struct Window {
  std::int64_t begin, end;
  float scale;  // of averages: one over the number of positions
};

Window window(const Axis& axis, std::int64_t position) {
  const auto scale = [](std::int64_t count) { return 1.0F / static_cast<float>(count); };
  if (axis.kernel == 0) {
    const std::int64_t begin = position * axis.in / axis.out;
    const std::int64_t end = ceil_divide((position + 1) * axis.in, axis.out);
    return {begin, end, scale(end - begin)};
  }
  std::int64_t begin = position * axis.stride - axis.padding;
  const std::int64_t end = begin + (axis.kernel - 1) * axis.dilation + 1;
  // As in PyTorch, windows that reach beyond the padding (ceil_mode) do not count that part.
  const std::int64_t padded = std::min(end, axis.in + axis.padding) - begin;
  if (begin < 0) begin += ceil_divide(-begin, axis.dilation) * axis.dilation;
  const std::int64_t inside = std::min(end, axis.in);
  return {begin, inside, scale(axis.counts_padding ? padded : inside - begin)};
}

}  // namespace

PoolingPlan::PoolingPlan(const PoolingShape& s, std::int64_t pixel_size) : pixel_size_(pixel_size) {
  const Axis rows{s.in.height,      s.out.height,      s.kernel.height, s.stride.height,
                  s.padding.height, s.dilation.height, s.counts_padding};
  const Axis columns{s.in.width,      s.out.width,      s.kernel.width,  s.stride.width,
                     s.padding.width, s.dilation.width, s.counts_padding};
  std::vector<std::vector<WindowTap>> of_inputs(static_cast<std::size_t>(s.in.pixels()));
  for (std::int64_t out = 0; out < s.out.pixels(); ++out) {
    const Window down = window(rows, out / s.out.width);
    const Window across = window(columns, out % s.out.width);
    std::vector<WindowTap> of_output;
    for (std::int64_t y = down.begin; y < down.end; y += s.dilation.height) {
      for (std::int64_t x = across.begin; x < across.end; x += s.dilation.width) {
        const std::int64_t in = y * s.in.width + x;
        const auto position = static_cast<std::int32_t>(of_output.size());
        const float scale = down.scale * across.scale;
        of_output.push_back({in * pixel_size, position, scale});
        of_inputs[static_cast<std::size_t>(in)].push_back({out * pixel_size, position, scale});
      }
    }
    forward_.add(of_output);
  }
  for (const std::vector<WindowTap>& of_input : of_inputs) backward_.add(of_input);
}

void PoolingPlan::Lists::add(const std::vector<WindowTap>& of_pixel) {
  taps.insert(taps.end(), of_pixel.begin(), of_pixel.end());
  begin.push_back(static_cast<std::int64_t>(taps.size()));
}

}  // namespace mnist_train::cpu_kernels
