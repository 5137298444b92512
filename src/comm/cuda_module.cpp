#include "comm/cuda_module.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"
#include "base/file.h"
#include "launch/worker_process.h"

namespace mnist_train::comm {

namespace {

const CudaModule* load() {
  const std::filesystem::path path = executable_folder() / launch::kCudaModule;
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw Error(ExitCode::kConfig,
                std::string("cannot use a GPU: ") + ::dlerror() +
                    "; scripts/setup --cuda installs LibTorch's CUDA parts and builds the module");
  }
  using Entry = const CudaModule* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, "mnist_train_cuda_module"));
  if (entry == nullptr) {
    throw Error(ExitCode::kConfig, path.string() + ": is not mnist-train's CUDA module");
  }
  return entry();
}

}  // namespace

const CudaModule& cuda_module() {
  static const CudaModule* const module = load();
  return *module;
}

}  // namespace mnist_train::comm
