#pragma once

namespace mnist_train {

/// Instruction sets for our kernels that both the CPU and Linux support. For tests,
/// MNIST_TRAIN_TEST_WITHOUT hides "amx", "bf16" or "avx512", each including those before it.
struct CpuFeatures {
  bool avx512 = false;       // F, BW and VL
  bool avx512_bf16 = false;  // implies avx512
  bool amx_bf16 = false;     // implies avx512_bf16
};

const CpuFeatures& cpu_features();

}  // namespace mnist_train
