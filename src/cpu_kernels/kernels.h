#pragma once

#include "cpu_kernels/convolution_kernels.h"
#include "cpu_kernels/layer_kernels.h"

namespace mnist_train::cpu_kernels {

/// All kernels for elements of one type.
template <class Element>
struct KernelTable {
  ConvolutionKernels<Element> convolution;
  LayerKernels<Element> layers;
};

/// Returns the kernels for this CPU, or null if it lacks AVX-512 (fp32) or AVX512-BF16 (bf16).
template <class Element>
const KernelTable<Element>* kernel_table();
template <>
const KernelTable<float>* kernel_table();
template <>
const KernelTable<Bf16Bits>* kernel_table();

/// Returns whether this CPU can compute with elements of this type.
template <class Element>
bool is_supported() {
  return kernel_table<Element>() != nullptr;
}

}  // namespace mnist_train::cpu_kernels
