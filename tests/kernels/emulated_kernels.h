#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <vector>

#include "kernels/selection.h"
#include "support/catch.h"

namespace mnist_train {

/// During its lifetime, the kernels compute tensors of CPUs in an emulated grid (see
/// support/grid/grid.h). All of them must have passed their checks.
class EmulatedKernels {
 public:
  EmulatedKernels();
  EmulatedKernels(const EmulatedKernels&) = delete;
  EmulatedKernels& operator=(const EmulatedKernels&) = delete;
  ~EmulatedKernels() { kernels::use(at::kCPU, nullptr); }
};

/// Fills freed memory, which the next tensors get, with NaN.
inline void spoil_memory() {
  std::vector<at::Tensor> spoilt;
  for (const std::int64_t size : {64, 1024, 1 << 14}) spoilt.push_back(at::full({size}, NAN));
}

/// Compares the gradients of `loss` (which returns a scalar) with finite differences. The tensors
/// are dense f32 leaves.
template <class Loss>
void check_gradients(const Loss& loss, const std::vector<at::Tensor>& tensors) {
  loss().backward();
  const at::NoGradGuard no_grad;
  constexpr float kStep = 1e-3F;
  for (const at::Tensor& values : tensors) {
    // Elements in the order of memory, so that a view can change each of them.
    const at::Tensor flat = values.as_strided({values.numel()}, {1});
    REQUIRE(values.grad().strides() == values.strides());
    const at::Tensor gradient = values.grad().as_strided({values.numel()}, {1});
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      const float before = flat[i].item<float>();
      flat[i] = before + kStep;
      const auto above = loss().template item<double>();
      flat[i] = before - kStep;
      const auto below = loss().template item<double>();
      flat[i] = before;
      CHECK(gradient[i].item<double>() == Approx((above - below) / (2 * kStep)).margin(0.02));
    }
  }
}

}  // namespace mnist_train
