// Compiled with AVX-512: must not use the standard library, whose inline functions could then end
// up in code for all CPUs.
#include "base/cpu.h"
#include "cpu_kernels/kernels.h"

#ifdef __AVX512BF16__

#include "cpu_kernels/activation_avx512.h"
#include "cpu_kernels/conversion_avx512.h"
#include "cpu_kernels/depthwise_avx512.h"
#include "cpu_kernels/flatten_avx512.h"
#include "cpu_kernels/gather_avx512.h"
#include "cpu_kernels/normalization_avx512.h"
#include "cpu_kernels/pooling_avx512.h"
#include "cpu_kernels/weight_gradient_avx512.h"

namespace mnist_train::cpu_kernels {

template <>
const ConvolutionKernels<Bf16Bits>* convolution_kernels() {
  static constexpr ConvolutionKernels<Bf16Bits> kKernels{&avx512::pack<Bf16Bits>,
                                                         &avx512::gather<Bf16Bits>,
                                                         &avx512::gradient_scratch<Bf16Bits>,
                                                         &avx512::gradient_rows<Bf16Bits>,
                                                         &avx512::rearrange<Bf16Bits>,
                                                         &avx512::add_products<Bf16Bits>,
                                                         &avx512::write_gradient<Bf16Bits>};
  return cpu_features().avx512_bf16 ? &kKernels : nullptr;
}

template <>
const DepthwiseKernels<Bf16Bits>* depthwise_kernels() {
  static constexpr DepthwiseKernels<Bf16Bits> kKernels{&avx512::depthwise_sum<Bf16Bits>,
                                                       &avx512::depthwise_gradient<Bf16Bits>};
  return cpu_features().avx512_bf16 ? &kKernels : nullptr;
}

template <>
const LayerKernels<Bf16Bits>* layer_kernels() {
  static constexpr LayerKernels<Bf16Bits> kKernels{&avx512::add_statistics<Bf16Bits>,
                                                   &avx512::normalize<Bf16Bits>,
                                                   &avx512::add_gradient_sums<Bf16Bits>,
                                                   &avx512::normalize_gradient<Bf16Bits>,
                                                   &avx512::add<Bf16Bits>,
                                                   &avx512::relu_gradient<Bf16Bits>,
                                                   &avx512::activate<Bf16Bits>,
                                                   &avx512::activation_gradient<Bf16Bits>,
                                                   &avx512::gate<Bf16Bits>,
                                                   &avx512::gate_gradient<Bf16Bits>,
                                                   &avx512::drop<Bf16Bits>,
                                                   &avx512::max_pool<Bf16Bits>,
                                                   &avx512::max_pool_gradient<Bf16Bits>,
                                                   &avx512::average_pool<Bf16Bits>,
                                                   &avx512::average_pool_gradient<Bf16Bits>,
                                                   &avx512::flatten<Bf16Bits>,
                                                   &avx512::unflatten<Bf16Bits>,
                                                   &avx512::from_plain<Bf16Bits>,
                                                   &avx512::to_plain<Bf16Bits>};
  return cpu_features().avx512_bf16 ? &kKernels : nullptr;
}

}  // namespace mnist_train::cpu_kernels

#else

namespace mnist_train::cpu_kernels {

template <>
const ConvolutionKernels<Bf16Bits>* convolution_kernels() {
  return nullptr;
}
template <>
const DepthwiseKernels<Bf16Bits>* depthwise_kernels() {
  return nullptr;
}
template <>
const LayerKernels<Bf16Bits>* layer_kernels() {
  return nullptr;
}

}  // namespace mnist_train::cpu_kernels

#endif
