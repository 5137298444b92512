// Compiled with AVX-512: must not use the standard library, whose inline functions could then end
// up in code for all CPUs.
#include "base/cpu.h"
#include "cpu_kernels/kernels.h"

#ifdef __AVX512F__

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
const ConvolutionKernels<float>* convolution_kernels() {
  static constexpr ConvolutionKernels<float> kKernels{
      &avx512::pack<float>,          &avx512::gather<float>,    &avx512::gradient_scratch<float>,
      &avx512::gradient_rows<float>, &avx512::rearrange<float>, &avx512::add_products<float>,
      &avx512::write_gradient<float>};
  return cpu_features().avx512 ? &kKernels : nullptr;
}

template <>
const DepthwiseKernels<float>* depthwise_kernels() {
  static constexpr DepthwiseKernels<float> kKernels{&avx512::depthwise_sum<float>,
                                                    &avx512::depthwise_gradient<float>};
  return cpu_features().avx512 ? &kKernels : nullptr;
}

template <>
const LayerKernels<float>* layer_kernels() {
  static constexpr LayerKernels<float> kKernels{&avx512::add_statistics<float>,
                                                &avx512::normalize<float>,
                                                &avx512::add_gradient_sums<float>,
                                                &avx512::normalize_gradient<float>,
                                                &avx512::add<float>,
                                                &avx512::relu_gradient<float>,
                                                &avx512::activate<float>,
                                                &avx512::activation_gradient<float>,
                                                &avx512::gate<float>,
                                                &avx512::gate_gradient<float>,
                                                &avx512::drop<float>,
                                                &avx512::max_pool<float>,
                                                &avx512::max_pool_gradient<float>,
                                                &avx512::average_pool<float>,
                                                &avx512::average_pool_gradient<float>,
                                                &avx512::flatten<float>,
                                                &avx512::unflatten<float>,
                                                &avx512::from_plain<float>,
                                                &avx512::to_plain<float>};
  return cpu_features().avx512 ? &kKernels : nullptr;
}

}  // namespace mnist_train::cpu_kernels

#else

namespace mnist_train::cpu_kernels {

template <>
const ConvolutionKernels<float>* convolution_kernels() {
  return nullptr;
}
template <>
const DepthwiseKernels<float>* depthwise_kernels() {
  return nullptr;
}
template <>
const LayerKernels<float>* layer_kernels() {
  return nullptr;
}

}  // namespace mnist_train::cpu_kernels

#endif
