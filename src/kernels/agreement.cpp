#include "kernels/agreement.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>

#include <sstream>

#include "accelerator/device.h"

namespace mnist_train::kernels {

void Agreement::add(const char* name, const at::Tensor& result, const at::Tensor& expected,
                    at::ScalarType type) {
  if (!difference_.empty()) return;
  // Kernels sum in another order and use fused multiply-adds.
  const double tolerance = type == at::kBFloat16 ? 1.0 / 128 : 1e-5;
  const at::Tensor computed = accelerator::to_host(result).to(at::kDouble).contiguous();
  const at::Tensor wanted = expected.to(at::kDouble).contiguous();
  const double largest = wanted.abs().max().item<double>();
  const double off = (computed - wanted).abs().max().item<double>();
  if (off <= tolerance * (largest > 0 ? largest : 1)) return;  // false for a NaN
  std::ostringstream text;
  text << name << " in " << c10::toString(type) << " differ by " << off << "; the largest value is "
       << largest;
  difference_ = text.str();
}

at::Tensor known_values(at::IntArrayRef sizes) {
  const at::Tensor numbers = at::arange(c10::multiply_integers(sizes), at::kDouble);
  return (numbers * 12.9898).sin_().mul_(43758.5453).frac_().mul_(0.99).to(at::kFloat).view(sizes);
}

}  // namespace mnist_train::kernels
