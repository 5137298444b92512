/// cuBLASLt with one algorithm; products are 0. Descriptors except matrix layouts are empty stubs.
#include <cublasLt.h>

#include <cstdint>

#include "support/fake_gpu/product.h"

namespace mnist_train::fake_gpu {

namespace {

struct MatrixLayout {
  cudaDataType type = CUDA_R_32F;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::int64_t column_stride = 0;  // in elements
};

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t column_stride) {
  auto* made = new MatrixLayout{type, rows, columns, column_stride};
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(made);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<MatrixLayout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  results[0] = {};
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                              cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t,
                              const void*, const void*, cublasLtMatrixLayout_t, void* result,
                              cublasLtMatrixLayout_t result_layout, const cublasLtMatmulAlgo_t*,
                              void*, std::size_t, cudaStream_t stream) {
  const auto& layout = *reinterpret_cast<const MatrixLayout*>(result_layout);
  return launch_product(stream, "cublasLtMatmul", result, layout.type, layout.rows, layout.columns,
                        layout.column_stride);
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
