// Helpers for all kernels. Kernels use only the subset of CUDA C++ that a C++ compiler accepts if
// tests/support/grid/grid.h is included first, so their arithmetic can be tested on CPUs. They
// include no headers, because NVRTC has none.

#ifndef EXPORT_KERNEL
#define EXPORT_KERNEL(name)  // in tests, registers a kernel with the emulated grid
#endif
#ifndef UNROLL
#define UNROLL _Pragma("unroll")  // unrolls the next loop, so its arrays can stay in registers
#endif

using int64 = long long;

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffU;

__device__ inline float infinity() { return __uint_as_float(0x7f800000U); }
__device__ inline float not_a_number() { return __uint_as_float(0x7fc00000U); }
__device__ inline bool is_finite(float value) {
  return (__float_as_uint(value) & 0x7f800000U) != 0x7f800000U;
}

/// A bfloat16 number: the upper 16 bits of an fp32 number.
struct bf16 {
  unsigned short bits;
};

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(bf16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

/// Rounds to nearest even; NaN stays NaN.
template <class T>
__device__ inline T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline bf16 from_float<bf16>(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  bf16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(value));
  return rounded;
#else
  const unsigned bits = __float_as_uint(value);
  if (value != value) return {static_cast<unsigned short>(0x7fc0)};
  return {static_cast<unsigned short>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
#endif
}

/// Adjacent values that are loaded or stored at once.
template <class T, int size>
struct alignas(sizeof(T) * size) Pack {
  T values[size];
};

/// Returns whether an address is a multiple of `bytes`; true for null.
__device__ inline bool is_aligned(const void* address, unsigned bytes) {
  return reinterpret_cast<unsigned long long>(address) % bytes == 0;
}

/// Defines a kernel per type: `define(name suffix, type, values per thread and row)`. With 16 bytes
/// of values, a row needs fewer threads; with four values, bf16 kernels need fewer registers.
#define FOR_EACH_TYPE(define) define(f32, float, 4) define(bf16, bf16, 8)
#define FOR_EACH_TYPE_BY_FOUR(define) define(f32, float, 4) define(bf16, bf16, 4)

/// Loads or stores a pack; the address must be aligned to the pack's size.
template <int size, class T>
__device__ inline Pack<T, size> load(const T* address) {
  return *reinterpret_cast<const Pack<T, size>*>(address);
}
template <int size, class T>
__device__ inline void store(T* address, const Pack<T, size>& pack) {
  *reinterpret_cast<Pack<T, size>*>(address) = pack;
}

__device__ inline int64 min_of(int64 a, int64 b) { return a < b ? a : b; }

/// This thread's index in the grid, and the number of threads in the grid.
__device__ inline int64 global_thread() {
  return static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64 grid_threads() { return static_cast<int64>(gridDim.x) * blockDim.x; }

/// Returns the sum over the lanes of a warp, in every lane.
__device__ inline float warp_sum(float value) {
  for (unsigned distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, static_cast<int>(distance));
  }
  return value;
}

/// Returns the sum over the threads of a block (whole warps, at most 1,024 threads), in every
/// thread. Every thread must call it.
__device__ inline float block_sum(float value) {
  __shared__ float sums[kWarp];
  value = warp_sum(value);
  __syncthreads();  // until all threads have read the result of an earlier call
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) total += sums[warp];
  return total;
}

/// Counts arriving blocks and returns, in all threads of a block, whether it is the last of
/// `blocks`. The last block sees everything that the others wrote to global memory before arriving.
/// `arrived` must be 0 when the kernel starts, and is reset to 0. Every thread must call it.
__device__ inline bool is_last_block(unsigned* arrived, unsigned blocks) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(arrived, 1U) + 1 == blocks;
    if (is_last) *arrived = 0;
  }
  __syncthreads();
  __threadfence();
  return is_last;
}

/// Like the overload above, for all blocks of the grid.
__device__ inline bool is_last_block(unsigned* arrived) {
  return is_last_block(arrived, gridDim.x);
}
