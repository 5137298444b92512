// Compiled with AVX-512: must not use the standard library, whose inline functions could end up in
// code that runs on all CPUs.
#include "base/cpu.h"
#include "cpu_kernels/kernels.h"

#ifdef __AVX512F__
#include "cpu_kernels/kernel_table_avx512.h"
#endif

namespace mnist_train::cpu_kernels {

template <>
const KernelTable<float>* kernel_table() {
#ifdef __AVX512F__
  if (cpu_features().avx512) return &avx512::kTable<float>;
#endif
  return nullptr;
}

}  // namespace mnist_train::cpu_kernels
