#include "comm/cuda_module.h"

#include <string>

#include "base/error.h"
#include "base/shared_library.h"
#include "launch/machine.h"

namespace mnist_train::comm {

namespace {

const CudaModule* load() {
  const std::string path = find_program_file(launch::kCudaModule).string();
  const SharedLibrary library(path.empty() ? launch::kCudaModule : path,
                              SharedLibrary::Symbols::kShared);
  if (!library.loaded()) {
    throw Error(ExitCode::kConfig,
                "cannot use a GPU: " + library.error() +
                    "; scripts/setup --cuda installs LibTorch's CUDA parts and builds the module");
  }
  const auto entry = library.find<const CudaModule*()>("mnist_train_cuda_module");
  if (entry == nullptr) {
    throw Error(ExitCode::kConfig, path + ": is not mnist-train's CUDA module");
  }
  return entry();
}

}  // namespace

const CudaModule& cuda_module() {
  static const CudaModule* const module = load();
  return *module;
}

}  // namespace mnist_train::comm
