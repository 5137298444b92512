#pragma once

#include <ATen/TensorOperators.h>

#include <sstream>
#include <string>

#include "accelerator/device.h"

namespace mnist_train {

/// Copies a tensor to a device; an undefined tensor stays undefined.
inline at::Tensor copy_to(at::Device device, const at::Tensor& host) {
  return host.defined() ? accelerator::to_device(host, device) : host;
}

/// Copies a tensor to a device as a leaf of the autograd graph. An undefined tensor stays so.
inline at::Tensor make_leaf(at::Device device, const at::Tensor& host, bool needs_gradient = true) {
  return host.defined() ? copy_to(device, host).detach().requires_grad_(needs_gradient) : host;
}

/// Compares the results of kernels with those of LibTorch's operations on the host.
class Agreement {
 public:
  /// Compares a result on any device with the expected one in fp32 or fp64. They agree if the
  /// difference, relative to the largest value, is within the rounding error of `type`, in which
  /// the kernel computed or stored it. Kernels sum in another order and with fused multiply-adds.
  void add(const char* name, const at::Tensor& result, const at::Tensor& expected,
           at::ScalarType type) {
    if (!difference_.empty()) return;
    const double tolerance = type == at::kBFloat16 ? 1.0 / 128 : 1e-5;
    const at::Tensor actual = accelerator::to_host(result).to(at::kDouble).contiguous();
    const at::Tensor reference = expected.to(at::kDouble).contiguous();
    const double largest = reference.abs().max().item<double>();
    const double error = (actual - reference).abs().max().item<double>();
    if (error <= tolerance * (largest > 0 ? largest : 1)) return;  // false for NaN
    std::ostringstream text;
    text << name << " in " << c10::toString(type) << " differ by " << error
         << "; the largest value is " << largest;
    difference_ = text.str();
  }

  /// Returns the first difference, or an empty string.
  const std::string& difference() const { return difference_; }

 private:
  std::string difference_;
};

}  // namespace mnist_train
