#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#define USE_C10D_NCCL
#include <torch/csrc/cuda/nccl.h>

#include <array>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "accelerator/cuda_module.h"
#include "base/error.h"
#include "base/system.h"
#include "comm/failures.h"
#include "cuda/kernel_compiler.h"

namespace mnist_train::cuda {

namespace {

int device_count() { return static_cast<int>(c10::cuda::device_count()); }

void set_device(int index) {
  const auto device = static_cast<c10::DeviceIndex>(index);
  c10::cuda::set_device(device);
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device));
}

std::int64_t peak_memory_bytes(int index) {
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
  return stats.reserved_bytes[0].peak;
}

std::int64_t free_memory_bytes(int index) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  std::size_t free = 0;
  std::size_t total = 0;
  C10_CUDA_CHECK(::cudaMemGetInfo(&free, &total));
  return static_cast<std::int64_t>(free);
}

const char* device_name(int index) {
  return at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index))->name;
}

std::string pci_address(int index) {
  std::array<char, 32> text{};
  C10_CUDA_CHECK(::cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), index));
  return text.data();
}

bool computes_bfloat16(int index) {
  constexpr int kAmpere = 8;
  return at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index))->major >= kAmpere;
}

int runtime_version() {
  int version = 0;
  return ::cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

std::string nccl_version() {
  constexpr std::uint64_t kMask = 0xffff;
  const std::uint64_t version = torch::cuda::nccl::version();  // major, minor, patch
  return std::to_string(version >> 32) + "." + std::to_string(version >> 16 & kMask) + "." +
         std::to_string(version & kMask);
}

class CudaEvent : public accelerator::DeviceEvent {
 public:
  void record() override { event_.record(); }
  bool is_done() const override { return event_.query(); }

 private:
  at::cuda::CUDAEvent event_;  // of the current stream, without timing
};

std::unique_ptr<accelerator::DeviceEvent> make_event() { return std::make_unique<CudaEvent>(); }

class CudaGraph : public accelerator::DeviceGraph {
 public:
  void capture(const std::function<void()>& work) override {
    try {
      capture_or_throw(work);
    } catch (const std::exception& error) {
      throw Error(ExitCode::kRunFailed,
                  "the training step cannot be captured as a CUDA graph: " + short_message(error) +
                      "; set cuda_graphs to \"off\" to train without one");
    }
  }
  void replay() override { graph_.replay(); }

 private:
  void capture_or_throw(const std::function<void()>& work) {
    // What other threads do meanwhile (NCCL's watchdog, the writer of checkpoints) is not captured.
    graph_.capture_begin(pool(), cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (const c10::Error&) {  // says only that there is no graph
      }
      throw;
    }
    graph_.capture_end();
  }

  /// All graphs of a process are replayed one after the other and leave nothing in this memory, so
  /// they share it.
  static c10::MempoolId_t pool() {
    static const c10::MempoolId_t kPool = at::cuda::graph_pool_handle();
    return kPool;
  }

  at::cuda::CUDAGraph graph_;
};

std::unique_ptr<accelerator::DeviceGraph> make_graph() { return std::make_unique<CudaGraph>(); }

constexpr accelerator::CudaModule kModule{&device_count,      &set_device,      &peak_memory_bytes,
                                          &free_memory_bytes, &device_name,     &pci_address,
                                          &computes_bfloat16, &runtime_version, &nccl_version,
                                          &make_event,        &make_graph,      &compile_kernels};

}  // namespace

}  // namespace mnist_train::cuda

extern "C" __attribute__((visibility("default"))) const mnist_train::accelerator::CudaModule*
mnist_train_cuda_module() {
  return &mnist_train::cuda::kModule;
}

extern "C" __attribute__((visibility("default"))) c10::intrusive_ptr<c10d::Backend>
mnist_train_make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                              int world_size, double timeout_s) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = mnist_train::to_milliseconds(timeout_s);
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, world_size, std::move(options));
}
