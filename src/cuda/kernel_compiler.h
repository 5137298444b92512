#pragma once

#include <memory>
#include <string>

#include "accelerator/device_kernel.h"

namespace mnist_train::cuda {

/// Compiles kernels as `CudaModule::compile_kernels` says.
std::unique_ptr<accelerator::KernelModule> compile_kernels(const std::string& source);

}  // namespace mnist_train::cuda
