#pragma once

// Only for sources compiled with AVX-512, like lanes_avx512.h.

#include "cpu_kernels/activation_avx512.h"
#include "cpu_kernels/gather_avx512.h"
#include "cpu_kernels/kernels.h"
#include "cpu_kernels/layers_avx512.h"
#include "cpu_kernels/weight_gradient_avx512.h"

namespace mnist_train::cpu_kernels::avx512 {

template <class Element>
inline constexpr KernelTable<Element> kTable{
    {&pack<Element>, &gather<Element>, &rearrange<Element>, &add_products<Element>,
     &write_gradient<Element>, &depthwise_gradient<Element>},
    {&add_statistics<Element>, &normalize<Element>, &add_gradient_sums<Element>,
     &normalize_gradient<Element>, &add<Element>, &relu_gradient<Element>, &activate<Element>,
     &activation_gradient<Element>, &gate<Element>, &gate_gradient<Element>, &drop<Element>,
     &max_pool<Element>, &max_pool_gradient<Element>, &average_pool<Element>,
     &average_pool_gradient<Element>, &flatten<Element>, &unflatten<Element>, &from_plain<Element>,
     &to_plain<Element>}};

}  // namespace mnist_train::cpu_kernels::avx512
