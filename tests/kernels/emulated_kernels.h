#pragma once

#include <ATen/ops/full.h>

#include <cmath>
#include <vector>

#include "kernels/operations.h"
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

}  // namespace mnist_train
