#pragma once

#include "cpu_kernels/convolution_kernels.h"
#include "cpu_kernels/layer_kernels.h"

namespace mnist_train::cpu_kernels {

// Return the kernels for this CPU. Require a CPU with AVX-512, for bf16 one with AVX512-BF16.
template <class Element>
const ConvolutionKernels<Element>& convolution_kernels();
template <>
const ConvolutionKernels<float>& convolution_kernels();
template <>
const ConvolutionKernels<Bf16Bits>& convolution_kernels();
template <class Element>
const LayerKernels<Element>& layer_kernels();
template <>
const LayerKernels<float>& layer_kernels();
template <>
const LayerKernels<Bf16Bits>& layer_kernels();

}  // namespace mnist_train::cpu_kernels
