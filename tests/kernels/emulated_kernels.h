#pragma once

#include "kernels/selection.h"

namespace mnist_train {

/// The kernels, which tensors of CPUs are given to and which a CPU computes as a grid (see
/// support/grid/grid.h), as long as it lives.
class EmulatedKernels {
 public:
  EmulatedKernels();
  EmulatedKernels(const EmulatedKernels&) = delete;
  EmulatedKernels& operator=(const EmulatedKernels&) = delete;
  ~EmulatedKernels() { kernels::use(at::kCPU, nullptr); }
};

}  // namespace mnist_train
