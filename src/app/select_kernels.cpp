#include "app/select_kernels.h"

#include <ATen/ops/tensor.h>
#include <spdlog/spdlog.h>

#include <vector>

#include "accelerator/device.h"
#include "kernels/selection.h"

namespace mnist_train::app {

namespace {

/// Rejects what does not work on some rank's GPU. CPUs, which have no such kernels, do not count.
void agree(const Worker& worker) {
  std::vector<float> failures;
  for (const kernels::Selected& operation : kernels::selected()) {
    failures.push_back(worker.placement.cuda && !operation.is_own ? 1 : 0);
  }
  at::Tensor failed_ranks = at::tensor(failures).to(worker.device());
  worker.communicator.all_reduce_sum(failed_ranks);
  const at::Tensor counts = accelerator::to_host(failed_ranks);
  for (std::size_t i = 0; i < kernels::kOperations; ++i) {
    if (!kernels::selected()[i].is_own || counts.const_data_ptr<float>()[i] == 0) continue;
    kernels::reject(static_cast<kernels::Operation>(i), "another rank cannot use it");
  }
}

}  // namespace

void select_kernels(Worker& worker) {
  if (worker.config.train.gpu_kernels == settings::GpuKernels::kOff) {
    kernels::use(worker.device(), nullptr, "gpu_kernels is \"off\"");
  } else {
    kernels::prepare(worker.device());
  }
  if (!worker.communicator.alone()) agree(worker);
  if (!worker.placement.cuda) return;
  for (const kernels::Selected& operation : kernels::selected()) {
    if (operation.is_own) {
      spdlog::debug("{}: computed by a kernel of this program's own", operation.name);
    } else {
      spdlog::info("{}: computed by LibTorch's operations ({})", operation.name, operation.reason);
    }
  }
}

}  // namespace mnist_train::app
