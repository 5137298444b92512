#pragma once

#include "cpu_kernels/convolution_kernels.h"
#include "cpu_kernels/depthwise_kernels.h"
#include "cpu_kernels/layer_kernels.h"

namespace mnist_train::cpu_kernels {

// Return the kernels for this CPU, or null if it lacks AVX-512 (fp32) or AVX512-BF16 (bf16).
template <class Element>
const ConvolutionKernels<Element>* convolution_kernels();
template <>
const ConvolutionKernels<float>* convolution_kernels();
template <>
const ConvolutionKernels<Bf16Bits>* convolution_kernels();
template <class Element>
const DepthwiseKernels<Element>* depthwise_kernels();
template <>
const DepthwiseKernels<float>* depthwise_kernels();
template <>
const DepthwiseKernels<Bf16Bits>* depthwise_kernels();
template <class Element>
const LayerKernels<Element>* layer_kernels();
template <>
const LayerKernels<float>* layer_kernels();
template <>
const LayerKernels<Bf16Bits>* layer_kernels();

/// Returns whether this CPU can compute with elements of this type.
template <class Element>
bool is_supported() {
  return layer_kernels<Element>() != nullptr;
}

}  // namespace mnist_train::cpu_kernels
