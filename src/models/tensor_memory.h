#pragma once

#include <ATen/core/Tensor.h>

namespace mnist_train::models {

// Memory of tensors as arguments of CPU kernels: f32, or the bits of bf16.

template <class Element>
const Element* memory_of(const at::Tensor& tensor) {
  return static_cast<const Element*>(tensor.const_data_ptr());
}

template <class Element>
Element* memory_to(const at::Tensor& tensor) {
  return static_cast<Element*>(tensor.mutable_data_ptr());
}

}  // namespace mnist_train::models
