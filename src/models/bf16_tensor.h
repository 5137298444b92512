#pragma once

#include <ATen/core/Tensor.h>

#include "models/bf16_convolution.h"

namespace mnist_train::models {

// The memory of bf16 tensors, as the kernels for CPUs take it.

inline const Bf16Bits* bits_of(const at::Tensor& values) {
  return static_cast<const Bf16Bits*>(values.const_data_ptr());
}

inline Bf16Bits* bits_to(const at::Tensor& values) {
  return static_cast<Bf16Bits*>(values.mutable_data_ptr());
}

}  // namespace mnist_train::models
