#include "accelerator/cuda_module.h"

#include <string>

#include "base/error.h"
#include "base/shared_library.h"
#include "launch/job.h"

namespace mnist_train::accelerator {

namespace {

SharedLibrary load() {
  const std::string path = find_program_file(launch::kCudaModule).string();
  SharedLibrary library(path.empty() ? launch::kCudaModule : path, SharedLibrary::Symbols::kShared);
  if (library.loaded()) return library;
  throw Error(ExitCode::kConfig,
              "cannot use a GPU: " + library.error() +
                  "; scripts/setup --cuda installs LibTorch's CUDA parts and builds the module");
}

}  // namespace

void* cuda_module_function(const char* name) {
  static const SharedLibrary kLibrary = load();
  if (auto* function = kLibrary.find<void()>(name)) return reinterpret_cast<void*>(function);
  throw Error(ExitCode::kConfig,
              std::string(launch::kCudaModule) + " is not mnist-train's CUDA module");
}

const CudaModule& cuda_module() {
  using Entry = const CudaModule*();
  static const CudaModule& module =
      *reinterpret_cast<Entry*>(cuda_module_function("mnist_train_cuda_module"))();
  return module;
}

}  // namespace mnist_train::accelerator
