#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "accelerator/device_kernel.h"

namespace mnist_train::kernels {

inline constexpr unsigned kWarp = 32;      // threads
inline constexpr unsigned kThreads = 256;  // of a block, where a kernel does not say otherwise

/// Returns the kernel of this name, for the device of `use`. Throws Error(kRunFailed) where there
/// is none.
const accelerator::DeviceKernel& kernel(const std::string& name);

inline constexpr std::int64_t kArrivedBlocks = 1024;  // counters

/// Returns counters of blocks, u32 on the device of `use`, that are 0 whenever a kernel begins, see
/// `is_last_block` in gpu/prelude.cu.
unsigned* arrived_blocks();

/// Returns how many blocks of `kThreads` threads there must be for so many threads.
inline unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

/// Returns "NAME_f32" or "NAME_bf16" for the type of a tensor, as kernels are named.
std::string name_for(const char* name, at::ScalarType type);

/// Returns a size as a parameter of type `int`, which must be large enough for it.
inline int as_int(std::int64_t size) { return static_cast<int>(size); }

/// Returns a number as a parameter of the kernels' type `int64`.
inline long long as_int64(std::int64_t number) { return number; }

/// Gives the stream the kernel of this name with arguments whose types are those of its parameters:
/// pointers, `float`, `int` and `long long`.
template <class... Arguments>
void launch(const std::string& name, const accelerator::Grid& grid, const Arguments&... arguments) {
  static_assert((... && (std::is_pointer_v<Arguments> || std::is_arithmetic_v<Arguments>)));
  const std::array<accelerator::KernelArgument, sizeof...(Arguments)> list{
      accelerator::KernelArgument{static_cast<const void*>(&arguments), sizeof arguments}...};
  kernel(name).launch(grid, list);
}

/// Returns the memory of a tensor as an argument of a kernel; null where the tensor is undefined.
inline void* memory_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

}  // namespace mnist_train::kernels
