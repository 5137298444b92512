#include <chrono>
#include <iostream>
#include <string>

#include "base/error.h"
#include "kernels/emulated_kernels.h"
#include "kernels/operations.h"
#include "support/catch.h"
#include "support/gpu.h"

using namespace mnist_train;

namespace {

/// A module without any kernel.
class EmptyModule : public accelerator::KernelModule {
 public:
  std::unique_ptr<accelerator::DeviceKernel> find(const std::string& name) const override {
    throw Error(ExitCode::kRunFailed, "there is no kernel " + name);
  }
};

bool all_used(at::Device device) {
  for (std::size_t i = 0; i < kernels::kOperations; ++i) {
    if (!kernels::is_used(static_cast<kernels::Operation>(i), device)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE(
    "kernels that compute what LibTorch does are used on their device, until one is rejected") {
  const at::Device cpu = at::kCPU;
  {
    const EmulatedKernels emulated;
    for (const kernels::Selected& operation : kernels::selected()) {
      CAPTURE(operation.name);
      CHECK(operation.reason == "");
    }
    CHECK(all_used(cpu));
    CHECK_FALSE(kernels::is_used(kernels::Operation::kSoftmaxLoss, {at::kCUDA, 0}));
    kernels::reject(kernels::Operation::kSoftmaxLoss, "a reason");
    CHECK_FALSE(kernels::is_used(kernels::Operation::kSoftmaxLoss, cpu));
    CHECK(kernels::selected()[0].reason == "a reason");
  }
  CHECK_FALSE(kernels::is_used(kernels::Operation::kOptimizerUpdate, cpu));
}

TEST_CASE("kernels that cannot be launched are not used, and the reason is kept") {
  kernels::use(at::kCPU, std::make_unique<EmptyModule>());
  for (const kernels::Selected& operation : kernels::selected()) {
    CHECK_FALSE(operation.is_own);
    CHECK(operation.reason.find("there is no kernel") == 0);
  }
  kernels::use(at::kCPU, nullptr);
}

TEST_CASE("a GPU computes all kernels as LibTorch does", "[gpu]") {
  if (!testing::have_gpu()) return;
  for (int time = 0; time < 2; ++time) {  // the second one finds them in the user's cache
    const auto begin = std::chrono::steady_clock::now();
    kernels::prepare({at::kCUDA, 0});
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::cout << "compiled or found, and checked, in " << seconds.count() << " s\n";
  }
  for (const kernels::Selected& operation : kernels::selected()) {
    CAPTURE(operation.name);
    CHECK(operation.reason == "");
  }
  CHECK(all_used({at::kCUDA, 0}));
  kernels::use({at::kCUDA, 0}, nullptr);
}
