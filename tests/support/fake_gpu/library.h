#pragma once

#include <library_types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "support/fake_gpu/device.h"

namespace mnist_train::fake_gpu {

/// Makes a handle or descriptor of a vendor's library that holds nothing. `Status` is the library's
/// type of results; its zero is success. The program ends it by `destroy_opaque`.
template <class Status, class Handle>
Status make_opaque(Handle* handle) {
  void* const nothing = new char;  // of no type: gcc compares sizes, but the object is never read
  *handle = static_cast<Handle>(nothing);
  return Status{};
}

template <class Status, class Handle>
Status destroy_opaque(Handle handle) {
  delete reinterpret_cast<char*>(handle);
  return Status{};
}

/// Returns an operation that sets the result of a product to 0: a matrix of `rows` x `columns`
/// elements, whose columns begin `column_stride` elements behind each other. So a loss that is
/// computed of it is finite.
inline Operation zero_columns(void* result, cudaDataType type, std::uint64_t rows,
                              std::uint64_t columns, std::uint64_t column_stride) {
  const std::size_t element = type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
  return [=] {
    auto* begin = static_cast<std::byte*>(host_address(result));
    for (std::uint64_t column = 0; column < columns; ++column) {
      std::memset(begin + column * column_stride * element, 0, rows * element);
    }
  };
}

}  // namespace mnist_train::fake_gpu
