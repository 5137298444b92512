#pragma once

#include <cublas_v2.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "support/fake_gpu/device.h"

namespace mnist_train::fake_gpu {

/// Launches a kernel that sets a matrix product to 0, so that the loss is finite. The result has
/// `rows` x `columns` elements, with columns `column_stride` elements apart. `name` is a literal.
inline cublasStatus_t launch_product(cudaStream_t stream, const char* name, void* result,
                                     cudaDataType type, std::uint64_t rows, std::uint64_t columns,
                                     std::int64_t column_stride) {
  const std::size_t element = type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
  const std::size_t stride = static_cast<std::size_t>(column_stride) * element;
  const bool launched = launch_library_kernel(stream, name, [=] {
                          auto* begin = static_cast<std::byte*>(host_address(result));
                          for (std::uint64_t column = 0; column < columns; ++column) {
                            std::memset(begin + column * stride, 0, rows * element);
                          }
                        }) == cudaSuccess;
  return launched ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace mnist_train::fake_gpu
