#pragma once

#include <filesystem>
#include <iostream>

#include "accelerator/device.h"
#include "base/file.h"
#include "launch/job.h"

namespace mnist_train::testing {

/// Returns whether a test case that needs a GPU can run. If not, prints a line that makes ctest
/// report the test as skipped. If the driver shows a GPU and this build has the CUDA module, a GPU
/// that cannot be used is a failure, not a reason to skip.
inline bool have_gpu() {
  if (launch::visible_gpus() == 0) {
    std::cout << "no CUDA device: the driver shows none\n";
    return false;
  }
  if (!std::filesystem::exists(executable_folder() / "libmnist-train-cuda.so")) {
    std::cout << "no CUDA device: this build has no CUDA module\n";
    return false;
  }
  if (accelerator::cuda_module().device_count() < 1) {
    throw Error(ExitCode::kRunFailed, "the driver shows a GPU, but LibTorch finds none");
  }
  accelerator::cuda_module().set_device(0);
  return true;
}

}  // namespace mnist_train::testing
