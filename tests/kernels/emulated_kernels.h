#pragma once

#include <ATen/ops/full.h>

#include <cmath>
#include <vector>

#include "kernels/operations.h"
#include "support/catch.h"

namespace mnist_train {

/// While an instance exists, kernels run on CPU tensors in an emulated grid (support/grid/grid.h).
class EmulatedKernels {
 public:
  EmulatedKernels();
  EmulatedKernels(const EmulatedKernels&) = delete;
  EmulatedKernels& operator=(const EmulatedKernels&) = delete;
  ~EmulatedKernels() { kernels::use(at::kCPU, nullptr); }
};

inline const at::Device kFirstGpu{at::kCUDA, 0};

/// While an instance exists, kernels run on the first GPU.
class GpuKernels {
 public:
  GpuKernels() { kernels::prepare(kFirstGpu); }
  GpuKernels(const GpuKernels&) = delete;
  GpuKernels& operator=(const GpuKernels&) = delete;
  ~GpuKernels() { kernels::use(kFirstGpu, nullptr); }
};

/// Fills memory that subsequent tensors will reuse with NaN.
inline void poison_memory() {
  std::vector<at::Tensor> poisoned;
  for (const std::int64_t size : {64, 1024, 1 << 14}) poisoned.push_back(at::full({size}, NAN));
}

}  // namespace mnist_train
