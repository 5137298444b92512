#include "cpu_kernels/gather_avx512.h"
#include "cpu_kernels/kernels.h"
#include "cpu_kernels/weight_gradient_avx512.h"

namespace mnist_train::cpu_kernels {

template <>
const ConvolutionKernels<Bf16Bits>& convolution_kernels() {
  static constexpr ConvolutionKernels<Bf16Bits> kKernels{
      &avx512::pack<Bf16Bits>, &avx512::gather<Bf16Bits>, &avx512::gradient_scratch<Bf16Bits>,
      &avx512::add_weight_gradient<Bf16Bits>};
  return kKernels;
}

}  // namespace mnist_train::cpu_kernels
