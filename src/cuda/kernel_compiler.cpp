#include "cuda/kernel_compiler.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/shared_library.h"
#include "base/system.h"

namespace mnist_train::cuda {

namespace {

/// Returns the folder of LibTorch's libraries.
std::filesystem::path libtorch_folder() {
  Dl_info libtorch{};
  ::dladdr(reinterpret_cast<const void*>(&c10::cuda::device_count), &libtorch);
  return std::filesystem::path(libtorch.dli_fname).parent_path();
}

/// Returns LibTorch's library through which NVRTC and CUDA's driver are reached. It is loaded here,
/// at first use, because LibTorch itself may never load it.
const SharedLibrary& library() {
  static const SharedLibrary kLibrary(libtorch_folder() / "libcaffe2_nvrtc.so");
  return kLibrary;
}

template <class Function>
Function* find_function(const char* name) {
  if (!library().loaded()) throw Error(ExitCode::kRunFailed, library().error());
  if (auto* found = library().find<Function>(name)) return found;
  throw Error(ExitCode::kRunFailed, std::string("libcaffe2_nvrtc.so has no ") + name);
}

// A function of NVRTC or of the driver, by its own type.
#define MNIST_TRAIN_FUNCTION(name) find_function<decltype(::name)>(#name)

void require(CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  MNIST_TRAIN_FUNCTION(cuGetErrorName)(result, &name);
  throw Error(ExitCode::kRunFailed, what + ": " + (name ? name : "unknown error"));
}

class CudaKernel : public accelerator::DeviceKernel {
 public:
  CudaKernel(std::string name, CUfunction function)
      : name_(std::move(name)),
        function_(function),
        launch_(MNIST_TRAIN_FUNCTION(cuLaunchKernel)) {}

  void launch(const accelerator::Grid& grid,
              std::span<const accelerator::KernelArgument> arguments) const override {
    constexpr std::size_t kMaxArguments = 64;
    if (grid.blocks == 0) return;
    bind_context();
    std::array<void*, kMaxArguments> values{};
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      values.at(i) = const_cast<void*>(arguments[i].value);
    }
    const CUresult result =
        launch_(function_, grid.blocks, 1, 1, grid.threads, 1, 1, /*shared_bytes=*/0,
                at::cuda::getCurrentCUDAStream(), values.data(), nullptr);
    if (result == CUDA_SUCCESS) return;
    require(result, "the kernel " + name_ +
                        " cannot start (it or what the GPU computed before failed; "
                        "\"gpu_kernels\": \"off\" trains without kernels of this program's own)");
  }

 private:
  /// Makes the GPU's context that of the calling thread. LibTorch's guards leave that out in a
  /// thread of autograd's whose GPU is number 0, which a new thread seems to have already.
  static void bind_context() {
    thread_local bool is_bound = false;
    if (!std::exchange(is_bound, true)) {
      c10::cuda::set_device(c10::cuda::current_device(), /*force=*/true);
    }
  }

  std::string name_;
  CUfunction function_;
  decltype(&::cuLaunchKernel) launch_;
};

class CudaKernelModule : public accelerator::KernelModule {
 public:
  /// `image` is what NVRTC made. The module is never unloaded: graphs may hold its kernels.
  explicit CudaKernelModule(const std::string& image) {
    require(MNIST_TRAIN_FUNCTION(cuModuleLoadData)(&module_, image.data()), "loading kernels");
  }

  std::unique_ptr<accelerator::DeviceKernel> find(const std::string& name) const override {
    CUfunction found = nullptr;
    require(MNIST_TRAIN_FUNCTION(cuModuleGetFunction)(&found, module_, name.c_str()), name);
    return std::make_unique<CudaKernel>(name, found);
  }

 private:
  CUmodule module_ = nullptr;
};

constexpr const char* kLanguage = "-std=c++17";

/// Loads the library with which NVRTC compiles, from beside it: NVRTC asks the system's loader for
/// it by name, which does not look there unless a CUDA toolkit is installed.
void load_nvrtc_builtins() {
  auto* const version = MNIST_TRAIN_FUNCTION(nvrtcVersion);
  int major = 0;
  int minor = 0;
  Dl_info nvrtc{};
  if (version(&major, &minor) != NVRTC_SUCCESS) return;
  if (::dladdr(reinterpret_cast<const void*>(version), &nvrtc) == 0) return;
  const std::string name =
      "libnvrtc-builtins.so." + std::to_string(major) + "." + std::to_string(minor);
  static const SharedLibrary kBuiltins(std::filesystem::path(nvrtc.dli_fname).parent_path() / name);
}

/// A program of NVRTC.
class Program {
 public:
  explicit Program(const std::string& source) {
    load_nvrtc_builtins();
    require(MNIST_TRAIN_FUNCTION(nvrtcCreateProgram)(&program_, source.c_str(), "mnist-train.cu", 0,
                                                     nullptr, nullptr));
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { MNIST_TRAIN_FUNCTION(nvrtcDestroyProgram)(&program_); }

  /// Returns the program for GPUs of this compute capability, 90 for 9.0: machine code, or PTX of
  /// the newest one that NVRTC knows.
  std::string compile(int capability) {
    int count = 0;
    require(MNIST_TRAIN_FUNCTION(nvrtcGetNumSupportedArchs)(&count));
    std::vector<int> known(static_cast<std::size_t>(count));
    require(MNIST_TRAIN_FUNCTION(nvrtcGetSupportedArchs)(known.data()));
    int newest = 0;  // of those that code for this GPU can be made for
    for (const int each : known) {
      if (each <= capability) newest = std::max(newest, each);
    }
    const bool is_known = newest == capability;
    const std::string architecture =
        (is_known ? "-arch=sm_" : "-arch=compute_") + std::to_string(newest);
    const std::array<const char*, 2> options{architecture.c_str(), kLanguage};
    const nvrtcResult result = MNIST_TRAIN_FUNCTION(nvrtcCompileProgram)(
        program_, static_cast<int>(options.size()), options.data());
    if (result == NVRTC_ERROR_COMPILATION) {
      throw Error(ExitCode::kRunFailed, "NVRTC: " + log());
    }
    require(result);
    return is_known
               ? text(MNIST_TRAIN_FUNCTION(nvrtcGetCUBINSize), MNIST_TRAIN_FUNCTION(nvrtcGetCUBIN))
               : text(MNIST_TRAIN_FUNCTION(nvrtcGetPTXSize), MNIST_TRAIN_FUNCTION(nvrtcGetPTX));
  }

 private:
  static void require(nvrtcResult result) {
    if (result == NVRTC_SUCCESS) return;
    throw Error(ExitCode::kRunFailed,
                std::string("NVRTC: ") + MNIST_TRAIN_FUNCTION(nvrtcGetErrorString)(result));
  }

  std::string log() const {
    return text(MNIST_TRAIN_FUNCTION(nvrtcGetProgramLogSize),
                MNIST_TRAIN_FUNCTION(nvrtcGetProgramLog));
  }

  template <class GetSize, class Get>
  std::string text(GetSize* get_size, Get* get) const {
    std::size_t size = 0;
    require(get_size(program_, &size));
    std::string bytes(size, '\0');
    require(get(program_, bytes.data()));
    return bytes;
  }

  nvrtcProgram program_ = nullptr;
};

/// Returns the module in a file of the cache; null where there is none, or none that loads. The
/// file begins with the hash of the rest, which shows damage: the driver looks at little.
std::unique_ptr<accelerator::KernelModule> load_cached(const std::filesystem::path& file) {
  std::error_code failed;
  if (!std::filesystem::exists(file, failed)) return nullptr;
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
    spdlog::debug("{}: compiling the kernels again: {}", file.string(), error.what());
    return nullptr;
  }
}

void save(const std::filesystem::path& file, const std::string& image) {
  try {
    write_file_atomically(file, hash_hex(image) + image, ExitCode::kRunFailed);
  } catch (const std::exception& error) {
    spdlog::debug("cannot keep compiled kernels: {}", error.what());
  }
}

}  // namespace

std::unique_ptr<accelerator::KernelModule> compile_kernels(const std::string& source) {
  const cudaDeviceProp& device = *at::cuda::getCurrentDeviceProperties();
  const int capability = 10 * device.major + device.minor;
  int version = 0;
  C10_CUDA_CHECK(::cudaRuntimeGetVersion(&version));
  const auto folder = own_cache_folder("kernels");
  if (!folder) return std::make_unique<CudaKernelModule>(Program(source).compile(capability));
  const std::filesystem::path file =
      *folder / hash_hex(source + kLanguage + " " + std::to_string(capability) + " " +
                         std::to_string(version));
  if (auto cached = load_cached(file)) return cached;
  const std::string image = Program(source).compile(capability);
  auto compiled = std::make_unique<CudaKernelModule>(image);
  save(file, image);
  return compiled;
}

#undef MNIST_TRAIN_FUNCTION

}  // namespace mnist_train::cuda
