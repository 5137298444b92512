#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/device_graph.h"

namespace mnist_train::comm {

/// What the CUDA module does for the rest of the program. LibTorch's CUDA half takes half a second
/// to load, so it and this module are loaded only by runs that use a GPU; tensors on a GPU then
/// work as everywhere else.
struct CudaModule {
  /// Collective. NCCL's backend; the caller has chosen the current device.
  c10::intrusive_ptr<c10d::Backend> (*make_nccl_backend)(
      const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, double timeout_s);
  int (*device_count)();
  /// The calling thread computes there from now on, in a stream of its own: the default one cannot
  /// be recorded.
  void (*set_device)(int index);
  void (*synchronize)();
  std::int64_t (*peak_memory_bytes)(int index);  // of LibTorch's allocator
  const char* (*device_name)(int index);
  bool (*computes_bfloat16)(int index);  // natively
  int (*runtime_version)();              // 13000 is 13.0
  std::string (*nccl_version)();         // "2.28.9"
  std::unique_ptr<DeviceGraph> (*make_graph)();
};

/// Loads the module once. Throws Error(kConfig) when this build has none or LibTorch's CUDA
/// libraries do not load.
const CudaModule& cuda_module();

}  // namespace mnist_train::comm
