#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

/// Max or average pooling with windows of one size. A kernel of size 0 means adaptive average
/// pooling as in PyTorch.
struct PoolingShape {
  ValueShape in, out;
  Extent kernel, stride, padding{0, 0}, dilation{1, 1};
  bool counts_padding = true;  // in averages
};

/// Returns whether the plan of a shape is small: it lists every element of every window.
inline bool has_small_plan(const PoolingShape& shape) {
  constexpr std::int64_t kMostElements = 1 << 20;
  return shape.out.pixels() * shape.kernel.height * shape.kernel.width <= kMostElements;
}
/// Also requires that a byte can hold the position of a maximum in its window.
inline bool can_pool_max(const PoolingShape& shape) {
  return has_small_plan(shape) && shape.kernel.height * shape.kernel.width < 255;
}

/// The windows of a pooling layer.
class PoolingPlan {
 public:
  PoolingPlan(const PoolingShape& s, std::int64_t pixel_size) : pixel_size_(pixel_size) {
    const Axis rows{s.in.height,      s.out.height,      s.kernel.height, s.stride.height,
                    s.padding.height, s.dilation.height, s.counts_padding};
    const Axis columns{s.in.width,      s.out.width,      s.kernel.width,  s.stride.width,
                       s.padding.width, s.dilation.width, s.counts_padding};
    std::vector<std::vector<WindowTap>> of_inputs(s.in.pixels());
    for (std::int64_t out = 0; out < s.out.pixels(); ++out) {
      const Window down = rows.window(out / s.out.width);
      const Window across = columns.window(out % s.out.width);
      std::vector<WindowTap> of_output;
      for (std::int64_t y = down.begin; y < down.end; y += s.dilation.height) {
        for (std::int64_t x = across.begin; x < across.end; x += s.dilation.width) {
          const std::int64_t in = y * s.in.width + x;
          const auto position = static_cast<std::int32_t>(of_output.size());
          const float scale = down.scale * across.scale;
          of_output.push_back({in * pixel_size, position, scale});
          of_inputs[in].push_back({out * pixel_size, position, scale});
        }
      }
      forward_.add(of_output);
    }
    for (const std::vector<WindowTap>& of_input : of_inputs) backward_.add(of_input);
  }

  /// Returns the elements of the window of each output pixel.
  PoolingView forward() const { return view(forward_); }
  /// Returns the windows that contain each input pixel.
  PoolingView backward() const { return view(backward_); }

 private:
  /// Input positions of an output position: from `begin` to `end` (exclusive), in steps of the
  /// dilation.
  struct Window {
    std::int64_t begin, end;
    float scale;  // for averages: one over the number of positions
  };
  struct Axis {
    std::int64_t in, out, kernel, stride, padding, dilation;
    bool counts_padding;

    Window window(std::int64_t position) const {
      const auto scale = [](std::int64_t count) { return 1.0F / static_cast<float>(count); };
      if (kernel == 0) {
        const std::int64_t begin = position * in / out;
        const std::int64_t end = ceil_divide((position + 1) * in, out);
        return {begin, end, scale(end - begin)};
      }
      std::int64_t begin = position * stride - padding;
      const std::int64_t end = begin + (kernel - 1) * dilation + 1;
      // As in PyTorch, the part of a window beyond the padding (ceil_mode) does not count.
      const std::int64_t padded = std::min(end, in + padding) - begin;
      if (begin < 0) begin += ceil_divide(-begin, dilation) * dilation;
      const std::int64_t inside = std::min(end, in);
      return {begin, inside, scale(counts_padding ? padded : inside - begin)};
    }
  };
  struct Lists {
    void add(const std::vector<WindowTap>& of_pixel) {
      taps.insert(taps.end(), of_pixel.begin(), of_pixel.end());
      begin.push_back(static_cast<std::int64_t>(taps.size()));
    }

    std::vector<std::int64_t> begin{0};
    std::vector<WindowTap> taps;
  };

  PoolingView view(const Lists& lists) const {
    return {static_cast<std::int64_t>(lists.begin.size()) - 1, pixel_size_, lists.begin.data(),
            lists.taps.data()};
  }

  std::int64_t pixel_size_;
  Lists forward_, backward_;
};

}  // namespace mnist_train::cpu_kernels
