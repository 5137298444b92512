#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace mnist_train::kernels {

/// Compares results of kernels with those of LibTorch's operations on the host.
class Agreement {
 public:
  /// Waits for a result and compares it with the expected one, f32 or f64 on the host. They agree
  /// if they differ by no more than the rounding of `type`, in which the kernel stored or computed,
  /// relative to the largest value.
  void add(const char* name, const at::Tensor& result, const at::Tensor& expected,
           at::ScalarType type);

  /// Returns the first difference, or an empty string.
  const std::string& difference() const { return difference_; }

 private:
  std::string difference_;
};

/// Returns pseudo-random f32 values in (-1, 1) on the host, the same in every process.
at::Tensor known_values(at::IntArrayRef sizes);

// The checks before first use: each computes small known cases by the kernels on the device and by
// LibTorch on the host.

void check_softmax_loss(at::Device device, Agreement& agreement);
void check_optimizer_update(at::Device device, Agreement& agreement);
void check_relu_max_pool(at::Device device, Agreement& agreement);
void check_gather_batch(at::Device device, Agreement& agreement);
void check_batch_norm(at::Device device, Agreement& agreement);
void check_linear_activation(at::Device device, Agreement& agreement);

}  // namespace mnist_train::kernels
