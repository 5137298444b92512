#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>
#include <spdlog/spdlog.h>

#define USE_C10D_NCCL
#include <torch/csrc/cuda/nccl.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerator/device.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/system.h"

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

class CudaGraph : public accelerator::DeviceGraph {
 public:
  void capture(const std::function<void()>& work) override try {
    // Thread-local, so calls of NCCL's watchdog or the checkpoint writer do not break the capture.
    graph_.capture_begin(*pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (const c10::Error&) {  // reports only that there is no graph
      }
      throw;
    }
    graph_.capture_end();
  } catch (const std::exception& error) {
    throw Error(ExitCode::kRunFailed,
                "the training step cannot be captured as a CUDA graph: " + short_message(error) +
                    "; set cuda_graphs to \"off\" to train without one");
  }
  void replay() override { graph_.replay(); }

 private:
  using Pool = const c10::MempoolId_t;

  /// Returns the memory pool that all graphs of a process share: they are replayed one at a time
  /// and keep no data in it. LibTorch's allocator rejects a pool once all of its graphs are gone.
  static std::shared_ptr<Pool> shared_pool() {
    static std::weak_ptr<Pool> last;
    std::shared_ptr<Pool> pool = last.lock();
    if (!pool) last = pool = std::make_shared<Pool>(at::cuda::graph_pool_handle());
    return pool;
  }

  std::shared_ptr<Pool> pool_ = shared_pool();
  at::cuda::CUDAGraph graph_;
};

std::unique_ptr<accelerator::DeviceGraph> make_graph() { return std::make_unique<CudaGraph>(); }

/// Returns the folder of the library that contains the function.
template <class Function>
std::filesystem::path folder_of(Function* function) {
  Dl_info library{};
  ::dladdr(reinterpret_cast<const void*>(function), &library);
  return std::filesystem::path(library.dli_fname ? library.dli_fname : "").parent_path();
}

/// Returns LibTorch's stub library for NVRTC and the CUDA driver. Loads it on the first call,
/// because LibTorch itself may never load it.
const SharedLibrary& library() {
  static const SharedLibrary kLibrary(folder_of(&c10::cuda::device_count) / "libcaffe2_nvrtc.so");
  return kLibrary;
}

template <class Function>
Function* find_function(const char* name) {
  if (!library().loaded()) throw Error(ExitCode::kRunFailed, library().error());
  if (auto* found = library().find<Function>(name)) return found;
  throw Error(ExitCode::kRunFailed, std::string("libcaffe2_nvrtc.so has no ") + name);
}

// A function of NVRTC or of the driver, with its type.
#define MNIST_TRAIN_FUNCTION(name) find_function<decltype(::name)>(#name)

void require(CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  MNIST_TRAIN_FUNCTION(cuGetErrorName)(result, &name);
  throw Error(ExitCode::kRunFailed, what + ": " + (name ? name : "unknown error"));
}

class CudaKernelModule : public accelerator::KernelModule {
 public:
  /// `image` is NVRTC's output. The module is never unloaded, because graphs may use its kernels.
  explicit CudaKernelModule(const std::string& image) {
    require(MNIST_TRAIN_FUNCTION(cuModuleLoadData)(&module_, image.data()), "loading kernels");
  }

  void launch(const std::string& name, const accelerator::Grid& grid,
              std::span<const accelerator::KernelArgument> arguments) override {
    constexpr std::size_t kMaxArguments = 64;
    const CUfunction function = find(name);
    if (grid.blocks == 0) return;
    bind_context();
    std::array<void*, kMaxArguments> values{};
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      values.at(i) = const_cast<void*>(arguments[i].value);
    }
    const CUresult result =
        launch_(function, grid.blocks, 1, 1, grid.threads, 1, 1, /*shared_bytes=*/0,
                at::cuda::getCurrentCUDAStream(), values.data(), nullptr);
    if (result == CUDA_SUCCESS) return;
    require(result, "the kernel " + name +
                        " cannot start (it or earlier work on the GPU failed; "
                        "\"gpu_kernels\": \"off\" trains without custom kernels)");
  }

 private:
  CUfunction find(const std::string& name) {
    CUfunction& found = functions_[name];
    if (found == nullptr) {
      require(MNIST_TRAIN_FUNCTION(cuModuleGetFunction)(&found, module_, name.c_str()), name);
    }
    return found;
  }

  /// Makes the GPU's context current in the calling thread. LibTorch's guards skip this for GPU 0
  /// in autograd's threads, because a new thread appears to be on GPU 0 already.
  static void bind_context() {
    thread_local bool is_bound = false;
    if (!std::exchange(is_bound, true)) {
      c10::cuda::set_device(c10::cuda::current_device(), /*force=*/true);
    }
  }

  CUmodule module_ = nullptr;
  decltype(&::cuLaunchKernel) launch_ = MNIST_TRAIN_FUNCTION(cuLaunchKernel);
  std::map<std::string, CUfunction> functions_;  // found so far, by name
};

constexpr const char* kLanguage = "-std=c++17";

/// Loads NVRTC's builtins library from NVRTC's folder. NVRTC would load it by name, which fails
/// unless a CUDA toolkit is installed.
void load_nvrtc_builtins() {
  auto* const version = MNIST_TRAIN_FUNCTION(nvrtcVersion);
  int major = 0;
  int minor = 0;
  if (version(&major, &minor) != NVRTC_SUCCESS) return;
  const std::string name =
      "libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor);
  static const SharedLibrary kBuiltins(folder_of(version) / name);
}

void require(nvrtcResult result) {
  if (result == NVRTC_SUCCESS) return;
  throw Error(ExitCode::kRunFailed,
              std::string("NVRTC: ") + MNIST_TRAIN_FUNCTION(nvrtcGetErrorString)(result));
}

/// Returns an output of an NVRTC program: its log, cubin or PTX.
template <class GetSize, class Get>
std::string program_output(nvrtcProgram program, GetSize* get_size, Get* get) {
  std::size_t size = 0;
  require(get_size(program, &size));
  std::string bytes(size, '\0');
  require(get(program, bytes.data()));
  return bytes;
}

/// Returns the source compiled for this compute capability (90 means 9.0): machine code or, if
/// NVRTC does not support that capability, PTX for the highest one below it that NVRTC supports.
std::string compile(const std::string& source, int capability) {
  load_nvrtc_builtins();
  int count = 0;
  require(MNIST_TRAIN_FUNCTION(nvrtcGetNumSupportedArchs)(&count));
  std::vector<int> supported(static_cast<std::size_t>(count));
  require(MNIST_TRAIN_FUNCTION(nvrtcGetSupportedArchs)(supported.data()));
  int newest = 0;  // compatible with this GPU
  for (const int each : supported) {
    if (each <= capability) newest = std::max(newest, each);
  }
  const bool is_supported = newest == capability;
  const std::string architecture =
      (is_supported ? "-arch=sm_" : "-arch=compute_") + std::to_string(newest);
  const std::array<const char*, 2> options{architecture.c_str(), kLanguage};
  nvrtcProgram program = nullptr;
  require(MNIST_TRAIN_FUNCTION(nvrtcCreateProgram)(&program, source.c_str(), "mnist-train.cu", 0,
                                                   nullptr, nullptr));
  const auto destroy = [](nvrtcProgram old) { MNIST_TRAIN_FUNCTION(nvrtcDestroyProgram)(&old); };
  const std::unique_ptr<std::remove_pointer_t<nvrtcProgram>, decltype(destroy)> owner(program,
                                                                                      destroy);
  const nvrtcResult result = MNIST_TRAIN_FUNCTION(nvrtcCompileProgram)(
      program, static_cast<int>(options.size()), options.data());
  if (result == NVRTC_ERROR_COMPILATION) {
    throw Error(ExitCode::kRunFailed,
                "NVRTC: " + program_output(program, MNIST_TRAIN_FUNCTION(nvrtcGetProgramLogSize),
                                           MNIST_TRAIN_FUNCTION(nvrtcGetProgramLog)));
  }
  require(result);
  return is_supported ? program_output(program, MNIST_TRAIN_FUNCTION(nvrtcGetCUBINSize),
                                       MNIST_TRAIN_FUNCTION(nvrtcGetCUBIN))
                      : program_output(program, MNIST_TRAIN_FUNCTION(nvrtcGetPTXSize),
                                       MNIST_TRAIN_FUNCTION(nvrtcGetPTX));
}

/// Returns the module in a cache file; null if there is none or it cannot be loaded. The file
/// starts with a hash of the rest, because the driver would not detect most damage.
std::unique_ptr<accelerator::KernelModule> load_cached(const std::filesystem::path& file) {
  if (!path_exists(file)) return nullptr;
  try {
    const MappedFile mapped = MappedFile::open(file, ExitCode::kRunFailed);
    const std::string content(reinterpret_cast<const char*>(mapped.bytes().data()),
                              mapped.bytes().size());
    const std::size_t digits = hash_hex(std::string_view()).size();
    const std::string image = content.substr(std::min(digits, content.size()));
    if (content.substr(0, digits) != hash_hex(image)) {
      throw Error(ExitCode::kRunFailed, "is damaged");
    }
    return std::make_unique<CudaKernelModule>(image);
  } catch (const Error& error) {
    spdlog::debug("{}: {}; recompiling the kernels", file.string(), error.what());
    return nullptr;
  }
}

void save(const std::filesystem::path& file, const std::string& image) {
  try {
    write_file_atomically(file, hash_hex(image) + image, ExitCode::kRunFailed);
  } catch (const std::exception& error) {
    spdlog::debug("cannot save compiled kernels: {}", error.what());
  }
}

/// Compiles kernels for the current GPU; see `CudaModule::compile_kernels`.
std::unique_ptr<accelerator::KernelModule> compile_kernels(const std::string& source) {
  const cudaDeviceProp& device = *at::cuda::getCurrentDeviceProperties();
  const int capability = 10 * device.major + device.minor;
  const auto folder = private_cache_folder("kernels");
  if (!folder) return std::make_unique<CudaKernelModule>(compile(source, capability));
  const std::filesystem::path file =
      *folder / hash_hex(source + kLanguage + " " + std::to_string(capability) + " " +
                         std::to_string(runtime_version()));
  if (auto cached = load_cached(file)) return cached;
  const std::string image = compile(source, capability);
  auto compiled = std::make_unique<CudaKernelModule>(image);
  save(file, image);
  return compiled;
}

#undef MNIST_TRAIN_FUNCTION

constexpr accelerator::CudaModule kModule{&device_count,      &set_device,      &peak_memory_bytes,
                                          &free_memory_bytes, &device_name,     &pci_address,
                                          &computes_bfloat16, &runtime_version, &nccl_version,
                                          &make_graph,        &compile_kernels};

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
