#pragma once

#include <ATen/core/Tensor.h>

#include "models/bf16_convolution.h"

namespace mnist_train::models {

// The memory of tensors, as the kernels for CPUs take it: f32, or the bits of bf16.

template <class Element>
const Element* memory_of(const at::Tensor& tensor) {
  return static_cast<const Element*>(tensor.const_data_ptr());
}

template <class Element>
Element* memory_to(const at::Tensor& tensor) {
  return static_cast<Element*>(tensor.mutable_data_ptr());
}

inline const Bf16Bits* bits_of(const at::Tensor& values) { return memory_of<Bf16Bits>(values); }

inline Bf16Bits* bits_to(const at::Tensor& values) { return memory_to<Bf16Bits>(values); }

}  // namespace mnist_train::models
