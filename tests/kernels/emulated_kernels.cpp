#include "kernels/emulated_kernels.h"

#include <memory>
#include <string>
#include <vector>

#include "support/grid/grid.h"
// The kernels' sources use the subset of CUDA C++ that grid.h implements.
// clang-format off
#include "kernels/gpu/prelude.cu"
#include "kernels/gpu/softmax_loss.cu"
#include "kernels/gpu/optimizer_update.cu"
#include "kernels/gpu/relu_max_pool.cu"
#include "kernels/gpu/gather_batch.cu"
#include "kernels/gpu/row_tiles.cu"
#include "kernels/gpu/batch_norm.cu"
#include "kernels/gpu/linear_activation.cu"
#include "kernels/gpu/channel_convolution.cu"
// clang-format on

#include "base/error.h"

namespace mnist_train {

namespace {

class EmulatedModule : public accelerator::KernelModule {
 public:
  void launch(const std::string& name, const accelerator::Grid& grid,
              std::span<const accelerator::KernelArgument> arguments) override {
    const auto found = grid::all_kernels().find(name);
    if (found == grid::all_kernels().end()) {
      throw Error(ExitCode::kRunFailed, "there is no kernel " + name);
    }
    std::vector<const void*> values;
    std::vector<std::size_t> sizes;
    for (const auto& argument : arguments) {
      values.push_back(argument.value);
      sizes.push_back(argument.bytes);
    }
    if (sizes != found->second.sizes()) {
      throw Error(ExitCode::kRunFailed, name + ": arguments do not fit the parameters");
    }
    found->second.with(values.data(), nullptr)(grid.blocks, grid.threads);
  }
};

}  // namespace

EmulatedKernels::EmulatedKernels() { kernels::use(at::kCPU, std::make_unique<EmulatedModule>()); }

}  // namespace mnist_train
