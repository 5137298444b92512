#include "base/cpu.h"

#include <algorithm>
#include <bit>
#include <cmath>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/system.h"

namespace mnist_train {

namespace {

#if defined(__x86_64__)

/// Queries the CPU itself, because some compilers' __builtin_cpu_supports does not recognise AMX,
/// and asks Linux for permission to use AMX's registers, as every process must.
bool may_use_amx() {
  constexpr unsigned kFeatures = 7;
  constexpr unsigned kTileAndBf16Bits = (1U << 24U) | (1U << 22U);
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(kFeatures, 0, &a, &b, &c, &d) != 0 &&
         (d & kTileAndBf16Bits) == kTileAndBf16Bits &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

CpuFeatures detect() {
  const std::string hidden = environment_variable("MNIST_TRAIN_TEST_WITHOUT").value_or("");
  CpuFeatures features;
  features.avx512 = hidden != "avx512" && __builtin_cpu_supports("avx512f") != 0 &&
                    __builtin_cpu_supports("avx512bw") != 0 &&
                    __builtin_cpu_supports("avx512vl") != 0;
  features.avx512_bf16 =
      features.avx512 && hidden != "bf16" && __builtin_cpu_supports("avx512bf16") != 0;
  features.amx_bf16 = features.avx512_bf16 && hidden != "amx" && may_use_amx();
  return features;
}

#else

CpuFeatures detect() { return {}; }

#endif

// These functions have internal linkage because Clang 14 cannot link cloned functions across files.

MNIST_TRAIN_VECTORIZED void widen(const std::uint16_t* __restrict from, std::int64_t count,
                                  float* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16U);
  }
}

MNIST_TRAIN_VECTORIZED void round(const float* __restrict from, std::int64_t count,
                                  std::uint16_t* __restrict to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
    to[i] = static_cast<std::uint16_t>(std::isnan(from[i]) ? 0x7fc0U : rounded);
  }
}

MNIST_TRAIN_VECTORIZED void sum(const float* a, const float* b, std::int64_t count, float* to) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) to[i] = a[i] + b[i];
}

/// Without the sign bit, floats sort like their bits as integers, and infinity and NaN come last.
MNIST_TRAIN_VECTORIZED bool are_finite(const float* values, std::int64_t count) {
  std::int32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff);
  }
  return largest < 0x7f800000;
}

}  // namespace

void bf16_to_float(const std::uint16_t* from, std::int64_t count, float* to) {
  widen(from, count, to);
}

void float_to_bf16(const float* from, std::int64_t count, std::uint16_t* to) {
  round(from, count, to);
}

void add_floats(const float* a, const float* b, std::int64_t count, float* to) {
  sum(a, b, count, to);
}

bool all_finite(const float* values, std::int64_t count) { return are_finite(values, count); }

const CpuFeatures& cpu_features() {
  static const CpuFeatures kFeatures = detect();
  return kFeatures;
}

}  // namespace mnist_train
