#include "accelerator/cuda_module.h"

#include <dlfcn.h>

#include <string>

#include "base/error.h"
#include "base/file.h"
#include "launch/worker_process.h"

namespace mnist_train::accelerator {

namespace {

std::filesystem::path module_path() { return executable_folder() / launch::kCudaModule; }

void* load() {
  void* library = ::dlopen(module_path().c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library != nullptr) return library;
  throw Error(ExitCode::kConfig,
              std::string("cannot use a GPU: ") + ::dlerror() +
                  "; scripts/setup --cuda installs LibTorch's CUDA parts and builds the module");
}

}  // namespace

void* cuda_module_function(const char* name) {
  static void* const library = load();
  void* const function = ::dlsym(library, name);
  if (function != nullptr) return function;
  throw Error(ExitCode::kConfig, module_path().string() + ": is not mnist-train's CUDA module");
}

const CudaModule& cuda_module() {
  using Entry = const CudaModule* (*)();
  static const CudaModule& module =
      *reinterpret_cast<Entry>(cuda_module_function("mnist_train_cuda_module"))();
  return module;
}

}  // namespace mnist_train::accelerator
