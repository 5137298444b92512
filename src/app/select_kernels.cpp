#include "app/select_kernels.h"

#include <spdlog/spdlog.h>

#include <string>

#include "kernels/selection.h"

namespace mnist_train::app {

namespace {

/// Rejects what does not work on some rank's GPU. CPUs, which have no such kernels, do not count.
/// Goes through the store, which has a time-out, unlike NCCL's first exchange with a rank whose GPU
/// hangs.
void agree(Worker& worker) {
  std::string failed;  // a character for each operation
  for (const kernels::Selected& operation : kernels::selected()) {
    failed += worker.placement.cuda && !operation.is_own ? 'x' : '-';
  }
  std::string failed_anywhere = failed;
  for (const std::string& of_rank : worker.communicator.gather_text(failed)) {
    for (std::size_t i = 0; i < failed.size(); ++i) {
      if (of_rank.at(i) == 'x') failed_anywhere[i] = 'x';
    }
  }
  failed_anywhere = worker.communicator.broadcast_text(failed_anywhere);
  for (std::size_t i = 0; i < kernels::kOperations; ++i) {
    if (!kernels::selected()[i].is_own || failed_anywhere.at(i) == '-') continue;
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
