#include "kernels/launch.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "base/error.h"
#include "kernels/operations.h"

namespace mnist_train::kernels {

namespace {

/// The kernels of this process, which uses a single device.
struct InUse {
  std::unique_ptr<accelerator::KernelModule> compiled;  // null if none
  at::Device device = at::kCPU;
  at::Tensor arrived;  // [kArrivedBlocks] i32
};

InUse& in_use() {
  static InUse in_use;
  return in_use;
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
  InUse& now = in_use();
  now.compiled = std::move(compiled);
  now.device = device;
  if (!now.compiled) return;
  now.arrived = at::zeros({kArrivedBlocks}, at::TensorOptions(at::kInt).device(device));
}

bool are_used(at::Device device) { return in_use().compiled && in_use().device == device; }

accelerator::KernelModule& kernels_in_use() { return *in_use().compiled; }

unsigned* arrived_blocks() { return static_cast<unsigned*>(in_use().arrived.data_ptr()); }

}  // namespace mnist_train::kernels
