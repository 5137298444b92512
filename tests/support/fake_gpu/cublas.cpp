/// cuBLAS: handles store their settings, and products are 0 or, in the stubs, no-op kernels.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "support/fake_gpu/device.h"
#include "support/fake_gpu/message.h"
#include "support/fake_gpu/product.h"

namespace mnist_train::fake_gpu {

namespace {

struct Handle {
  cudaStream_t stream = nullptr;
  cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
};

Handle& handle_of(cublasHandle_t handle) { return *reinterpret_cast<Handle*>(handle); }

cublasStatus_t launch_gemm(cublasHandle_t handle, const char* name, void* result, cudaDataType type,
                           int rows, int columns, int column_stride) {
  return launch_product(handle_of(handle).stream, name, result, type,
                        static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns),
                        column_stride);
}

}  // namespace

int launch_with_handle(void* handle, const char* function) {
  const cudaStream_t stream = static_cast<Handle*>(handle)->stream;
  const bool launched = launch_library_kernel(stream, function) == cudaSuccess;
  return launched ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

extern "C" {

/// Fails during a capture, because the real function allocates memory.
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (check_unsafe_call("cublasCreate") != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasHandle_t>(new Handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete &handle_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

#define FAKE_GPU_SETTING(name, type, member)                           \
  cublasStatus_t cublasSet##name(cublasHandle_t handle, type value) {  \
    handle_of(handle).member = value;                                  \
    return CUBLAS_STATUS_SUCCESS;                                      \
  }                                                                    \
  cublasStatus_t cublasGet##name(cublasHandle_t handle, type* value) { \
    *value = handle_of(handle).member;                                 \
    return CUBLAS_STATUS_SUCCESS;                                      \
  }

FAKE_GPU_SETTING(Stream_v2, cudaStream_t, stream)
FAKE_GPU_SETTING(MathMode, cublasMath_t, math_mode)
FAKE_GPU_SETTING(PointerMode_v2, cublasPointerMode_t, pointer_mode)

#undef FAKE_GPU_SETTING

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int rows,
                              int columns, int, const float*, const float*, int, const float*, int,
                              const float*, float* result, int column_stride) {
  return launch_gemm(handle, "cublasSgemm_v2", result, CUDA_R_32F, rows, columns, column_stride);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int rows,
                            int columns, int, const void*, const void*, cudaDataType, int,
                            const void*, cudaDataType, int, const void*, void* result,
                            cudaDataType type, int column_stride, cublasComputeType_t,
                            cublasGemmAlgo_t) {
  return launch_gemm(handle, "cublasGemmEx", result, type, rows, columns, column_stride);
}

}  // extern "C"

}  // namespace mnist_train::fake_gpu
