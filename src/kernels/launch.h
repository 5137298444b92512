#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <tuple>

#include "accelerator/device.h"

namespace mnist_train::kernels {

inline constexpr unsigned kWarp = 32;      // threads
inline constexpr unsigned kThreads = 256;  // per block, unless a kernel requires a different number

/// Returns the CUDA C++ source of all kernels: the concatenated files of gpu/, prelude first.
const std::string& source();

/// Returns the kernels passed to `use`.
accelerator::KernelModule& active_kernels();

inline constexpr std::int64_t kArrivalCounters = 1024;

/// Returns the kArrivalCounters counters of arrived blocks: u32, on the device passed to `use`, and
/// 0 whenever a kernel starts. See `is_last_block` in gpu/prelude.cu.
unsigned* arrival_counters();

inline std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Returns the number of blocks of `kThreads` threads needed for this many threads.
inline unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>(ceil_divide(threads, kThreads));
}

/// Returns the kernel name for a tensor's type: "NAME_f32" or "NAME_bf16".
inline std::string name_for(const char* name, at::ScalarType type) {
  return std::string(name) + (type == at::kBFloat16 ? "_bf16" : "_f32");
}

inline bool is_f32_or_bf16(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
}

/// Returns how many bytes a thread can access at once: the largest power of two, at most 16, that
/// divides `row_bytes` and the addresses of all defined tensors.
inline std::int64_t access_bytes(std::int64_t row_bytes,
                                 std::initializer_list<at::Tensor> tensors) {
  std::int64_t bits = row_bytes | 16;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) bits |= reinterpret_cast<std::intptr_t>(tensor.const_data_ptr());
  }
  return bits & -bits;
}

/// Converts a size to `int` for a kernel parameter; the caller ensures that it fits.
inline int as_int(std::int64_t size) { return static_cast<int>(size); }

// Conversions to the types of kernel parameters. An undefined tensor becomes a null pointer.

inline void* argument(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}
inline unsigned* argument(unsigned* counters) { return counters; }
inline long long argument(std::int64_t number) { return number; }
inline int argument(int number) { return number; }
inline int argument(bool flag) { return flag ? 1 : 0; }
inline float argument(double number) { return static_cast<float>(number); }

/// Launches the kernel with this name on the current stream. Tensors become pointers, std::int64_t
/// becomes `int64`, bool becomes `int`, and double becomes `float`.
template <class... Arguments>
void launch(const std::string& name, const accelerator::Grid& grid, const Arguments&... arguments) {
  const std::tuple values{argument(arguments)...};
  std::apply(
      [&](const auto&... value) {
        active_kernels().launch(name, grid,
                                std::array{accelerator::KernelArgument{
                                    static_cast<const void*>(&value), sizeof value}...});
      },
      values);
}

}  // namespace mnist_train::kernels
