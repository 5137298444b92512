#pragma once

namespace mnist_train {

/// Instruction sets that kernels of this program use, if both the processor and Linux have them.
/// Tests hide some of them by MNIST_TRAIN_TEST_WITHOUT ("amx", "bf16" or "avx512": each also hides
/// those that come before it).
struct CpuFeatures {
  bool avx512 = false;       // F, BW and VL
  bool avx512_bf16 = false;  // besides
  bool amx_bf16 = false;     // besides
};

const CpuFeatures& cpu_features();

}  // namespace mnist_train
