#include "kernels/launch.h"

#include <chrono>
#include <iostream>

#include "kernels/emulated_kernels.h"
#include "support/catch.h"
#include "support/gpu.h"

using namespace mnist_train;

TEST_CASE("kernels are used on a single device") {
  {
    const EmulatedKernels emulated;
    CHECK(kernels::are_used(at::kCPU));
    CHECK_FALSE(kernels::are_used({at::kCUDA, 0}));
    CHECK_THROWS_WITH(kernels::launch("idle", {1, 1}, 0), "there is no kernel idle");
  }
  CHECK_FALSE(kernels::are_used(at::kCPU));
}

TEST_CASE("kernels are compiled for a GPU, or found in the user's cache", "[gpu]") {
  if (!testing::have_gpu()) return;
  for (int time = 0; time < 2; ++time) {
    const auto begin = std::chrono::steady_clock::now();
    const GpuKernels gpu;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::cout << "compiled or found in " << seconds.count() << " s\n";
    CHECK(kernels::are_used(kFirstGpu));
    CHECK_NOTHROW(kernels::launch("softmax_loss_bf16", {0, 1}, 0));
  }
}
