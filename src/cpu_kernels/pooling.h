#pragma once

#include <cstdint>
#include <vector>

#include "cpu_kernels/convolution_kernels.h"
#include "cpu_kernels/layer_kernels.h"

namespace mnist_train::cpu_kernels {

/// Max or average pooling by windows of one size.
struct PoolingShape {
  ValueShape in, out;
  Extent kernel, stride, padding{0, 0}, dilation{1, 1};
  bool counts_padding = true;  // in averages
};

/// Returns whether a byte can hold the position of a maximum in its window.
inline bool can_pool_max(const PoolingShape& shape) {
  return shape.kernel.height * shape.kernel.width < 255;
}

/// Windows of a pooling layer.
class PoolingPlan {
 public:
  explicit PoolingPlan(const PoolingShape& shape);
  /// Adaptive average pooling as in PyTorch.
  PoolingPlan(const ValueShape& in, const ValueShape& out);

  const PoolingView& view() const { return view_; }

  PoolingPlan(PoolingPlan&&) = default;
  PoolingPlan& operator=(PoolingPlan&&) = default;
  PoolingPlan(const PoolingPlan&) = delete;
  PoolingPlan& operator=(const PoolingPlan&) = delete;

 private:
  void finish(const ValueShape& in, const ValueShape& out, Extent dilation,
              std::int64_t kernel_width);

  std::vector<Window> rows_, columns_;
  std::vector<Cover> row_covers_, column_covers_;
  PoolingView view_{};
};

}  // namespace mnist_train::cpu_kernels
