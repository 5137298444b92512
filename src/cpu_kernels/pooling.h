#pragma once

#include <cstdint>
#include <vector>

#include "cpu_kernels/kernels.h"

namespace mnist_train::cpu_kernels {

/// Max or average pooling by windows of one size. With a kernel of size 0, adaptive average pooling
/// as in PyTorch.
struct PoolingShape {
  ValueShape in, out;
  Extent kernel, stride, padding{0, 0}, dilation{1, 1};
  bool counts_padding = true;  // in averages
};

/// Returns whether a byte can hold the position of a maximum in its window.
inline bool can_pool_max(const PoolingShape& shape) {
  return shape.kernel.height * shape.kernel.width < 255;
}

/// The windows of a pooling layer.
class PoolingPlan {
 public:
  PoolingPlan(const PoolingShape& shape, std::int64_t pixel_size);

  /// Returns the elements of the window of each output pixel.
  PoolingView forward() const { return view(forward_); }
  /// Returns the windows that contain each input pixel.
  PoolingView backward() const { return view(backward_); }

 private:
  struct Lists {
    void add(const std::vector<WindowTap>& of_pixel);

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
