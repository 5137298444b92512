#include "kernels/launch.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "base/error.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

namespace {

/// The kernels of this process, which uses a single device.
struct ActiveKernels {
  std::unique_ptr<accelerator::KernelModule> compiled;  // null if none
  at::Device device = at::kCPU;
  at::Tensor counters;  // [kArrivalCounters] i32
};

ActiveKernels& instance() {
  static ActiveKernels instance;
  return instance;
}

}  // namespace

void prepare(at::Device device) {
  try {
    use(device, accelerator::cuda_module().compile_kernels(source()));
  } catch (const std::exception& error) {
    throw Error(ExitCode::kRunFailed,
                "the GPU kernels cannot be compiled: " + short_message(error) +
                    "; set gpu_kernels to \"off\" to train without them");
  }
}

void use(at::Device device, std::unique_ptr<accelerator::KernelModule> compiled) {
  ActiveKernels& current = instance();
  current.compiled = std::move(compiled);
  current.device = device;
  if (!current.compiled) return;
  current.counters = at::zeros({kArrivalCounters}, at::TensorOptions(at::kInt).device(device));
}

bool are_used(at::Device device) { return instance().compiled && instance().device == device; }

accelerator::KernelModule& active_kernels() { return *instance().compiled; }

unsigned* arrival_counters() { return static_cast<unsigned*>(instance().counters.data_ptr()); }

}  // namespace mnist_train::kernels
