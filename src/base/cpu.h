#pragma once

#include <cstdint>

/// Marks a function with vectorisable loops: it is compiled for multiple instruction sets, and the
/// best version is selected at startup. List its file under VECTORIZED in the layer's
/// CMakeLists.txt; this disables fused multiply-add, so that all CPUs yield bit-identical results.
#if defined(__x86_64__)
#define MNIST_TRAIN_VECTORIZED [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define MNIST_TRAIN_VECTORIZED
#endif

namespace mnist_train {

/// Instruction sets that our kernels use and that both the CPU and Linux support. For tests,
/// MNIST_TRAIN_TEST_WITHOUT hides "amx", "bf16" or "avx512"; each value also hides those before it.
struct CpuFeatures {
  bool avx512 = false;       // F, BW and VL
  bool avx512_bf16 = false;  // implies avx512
  bool amx_bf16 = false;     // implies avx512_bf16
};

const CpuFeatures& cpu_features();

// A bf16 value is stored as the upper 16 bits of a float. Arrays must not overlap.

void bf16_to_float(const std::uint16_t* from, std::int64_t count, float* to);
/// Rounds to nearest even; propagates NaN.
void float_to_bf16(const float* from, std::int64_t count, std::uint16_t* to);

/// Writes the sums of two arrays to `to`, which may be one of them.
void add_floats(const float* a, const float* b, std::int64_t count, float* to);
/// Returns whether no value is NaN or infinite.
bool all_finite(const float* values, std::int64_t count);

}  // namespace mnist_train
