// Compiled with AVX-512: must not use the standard library, whose inline functions could end up in
// code that runs on all CPUs.
#include "base/cpu.h"
#include "cpu_kernels/kernels.h"

#ifdef __AVX512F__
#include "cpu_kernels/activation_avx512.h"
#include "cpu_kernels/gather_avx512.h"
#include "cpu_kernels/layers_avx512.h"
#include "cpu_kernels/weight_gradient_avx512.h"

namespace mnist_train::cpu_kernels::avx512 {

template <class Element>
constexpr KernelTable<Element> kTable{
    {&pack<Element>, &gather<Element>, &rearrange<Element>, &transform_tiles<Element>,
     &add_products<Element>, &transform_sums<Element>, &depthwise_gradient<Element>},
    {&add_statistics<Element>, &normalize<Element>, &add_gradient_sums<Element>,
     &normalize_gradient<Element>, &add<Element>, &relu_gradient<Element>, &activate<Element>,
     &activation_gradient<Element>, &drop<Element>, &max_pool<Element>, &max_pool_gradient<Element>,
     &average_pool<Element>, &average_pool_gradient<Element>, &reorder<Element, false>,
     &reorder<Element, true>, &from_plain<Element>, &to_plain<Element>}};

}  // namespace mnist_train::cpu_kernels::avx512
#endif

namespace mnist_train::cpu_kernels {

template <class Element>
const KernelTable<Element>* kernel_table() {
#ifdef __AVX512F__
  const CpuFeatures& cpu = cpu_features();
  if (kDepth<Element> == 1 ? cpu.avx512 : cpu.avx512_bf16) return &avx512::kTable<Element>;
#endif
  return nullptr;
}
template const KernelTable<float>* kernel_table();
template const KernelTable<Bf16Bits>* kernel_table();

}  // namespace mnist_train::cpu_kernels
