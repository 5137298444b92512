#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "accelerator/device.h"
#include "accelerator/device_kernel.h"

namespace mnist_train::accelerator {

/// The functions of the CUDA module. LibTorch's CUDA half takes half a second to load, so only runs
/// that use a GPU load it and this module; tensors on a GPU then work as everywhere else.
struct CudaModule {
  int (*device_count)();
  /// Makes the calling thread compute on that GPU, in its own stream: CUDA does not capture graphs
  /// in the default stream.
  void (*set_device)(int index);
  std::int64_t (*peak_memory_bytes)(int index);  // of LibTorch's allocator
  std::int64_t (*free_memory_bytes)(int index);
  const char* (*device_name)(int index);
  /// Returns "0000:01:00.0", by which NCCL tells GPUs apart. The same for all slices (MIG) of a
  /// GPU.
  std::string (*pci_address)(int index);
  bool (*computes_bfloat16)(int index);  // natively
  int (*runtime_version)();              // 13000 is 13.0
  std::string (*nccl_version)();         // "2.28.9"
  std::unique_ptr<DeviceEvent> (*make_event)();
  std::unique_ptr<DeviceGraph> (*make_graph)();
  /// Compiles CUDA C++ by NVRTC for the GPU of the calling thread, or finds it compiled in the
  /// user's cache. Throws Error(kRunFailed).
  std::unique_ptr<KernelModule> (*compile_kernels)(const std::string& source);
};

/// Returns the module's functions; loads it on the first call. Throws Error(kConfig) if this build
/// has no CUDA module or LibTorch's CUDA libraries cannot be loaded.
const CudaModule& cuda_module();

/// Returns a function of the CUDA module by its C name, for functions that another layer declares.
/// Throws as `cuda_module` does.
void* cuda_module_function(const char* name);

}  // namespace mnist_train::accelerator
