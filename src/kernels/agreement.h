#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace mnist_train::kernels {

/// Compares what a kernel computed with what LibTorch's operations compute on the host.
class Agreement {
 public:
  /// Compares one result, which is waited for, with what it should be, f32 or f64 on the host. They
  /// agree where they differ by no more than the rounding of `type`, in which the kernel stored or
  /// computed, relative to the largest value.
  void add(const char* name, const at::Tensor& result, const at::Tensor& expected,
           at::ScalarType type);

  /// Returns what differs first; nothing where all agrees.
  const std::string& difference() const { return difference_; }

 private:
  std::string difference_;
};

/// Returns f32 between -1 and 1 on the host that look random and are the same in every process.
at::Tensor known_values(at::IntArrayRef sizes);

}  // namespace mnist_train::kernels
