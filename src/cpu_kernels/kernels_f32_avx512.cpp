#include "cpu_kernels/gather_avx512.h"
#include "cpu_kernels/kernels.h"
#include "cpu_kernels/weight_gradient_avx512.h"

namespace mnist_train::cpu_kernels {

template <>
const ConvolutionKernels<float>& convolution_kernels() {
  static constexpr ConvolutionKernels<float> kKernels{&avx512::pack<float>, &avx512::gather<float>,
                                                      &avx512::gradient_scratch<float>,
                                                      &avx512::add_weight_gradient<float>};
  return kKernels;
}

}  // namespace mnist_train::cpu_kernels
