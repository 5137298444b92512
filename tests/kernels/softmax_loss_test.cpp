#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include "kernels/agreement.h"
#include "kernels/emulated_kernels.h"
#include "kernels/operations.h"
#include "support/catch.h"
#include "support/gpu.h"
#include "support/grid/order.h"

using namespace mnist_train;

namespace {

struct LossCase {
  std::int64_t samples;
  std::int64_t classes;
  at::ScalarType type;
  bool mixed;
  double smoothing;
};

at::Tensor losses(const at::Tensor& logits, const at::Tensor& labels, double smoothing) {
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::None, -100, smoothing);
}

/// Compares the kernel on a device with LibTorch's operations.
void check_loss(const LossCase& test, at::Device device) {
  constexpr double kScale = 0.125;
  const at::Tensor logits = (at::randn({test.samples, test.classes}) * 4).to(test.type);
  kernels::Targets targets{at::randint(test.classes, {test.samples}, at::kLong)};
  const at::Tensor scores = logits.to(at::kFloat).requires_grad_();
  const at::Tensor predicted = logits.argmax(1);
  at::Tensor loss = losses(scores, targets.labels, test.smoothing);
  at::Tensor correct = predicted.eq(targets.labels).to(at::kFloat);
  if (test.mixed) {
    targets.other_labels = at::randint(test.classes, {test.samples}, at::kLong);
    targets.weights = at::rand({test.samples});
    loss = loss * targets.weights +
           losses(scores, targets.other_labels, test.smoothing) * (1 - targets.weights);
    correct = correct * targets.weights +
              predicted.eq(targets.other_labels).to(at::kFloat) * (1 - targets.weights);
  }
  torch::autograd::backward({loss.sum() * kScale});

  const at::NoGradGuard no_grad;
  const at::Tensor sums = copy_to(device, at::ones({3}));
  const at::Tensor gradient = copy_to(device, at::empty_like(logits));
  kernels::softmax_loss(copy_to(device, logits),
                        {copy_to(device, targets.labels), copy_to(device, targets.other_labels),
                         copy_to(device, targets.weights)},
                        test.smoothing, kScale, gradient, sums);
  Agreement agreement;
  agreement.add("loss", sums[0], loss.detach().sum() + 1, at::kFloat);
  agreement.add("correct", sums[1], correct.sum() + 1, at::kFloat);
  agreement.add("samples", sums[2], at::full({}, test.samples, at::kFloat) + 1, at::kFloat);
  agreement.add("gradient", gradient, scores.grad(), test.type);
  CAPTURE(test.samples, test.classes, test.type, test.mixed, test.smoothing);
  CHECK(agreement.difference() == "");
}

void check_losses(at::Device device) {
  torch::manual_seed(5);
  for (const std::int64_t samples : {1, 7, 8, 9, 128, 301}) {
    for (const std::int64_t classes : {2, 10, 31, 32, 33, 100}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        check_loss({samples, classes, type, /*mixed=*/false, 0}, device);
        check_loss({samples, classes, type, /*mixed=*/true, 0.1}, device);
      }
    }
  }
}

}  // namespace

TEST_CASE("the loss kernel matches LibTorch") {
  const EmulatedKernels emulated;
  const grid::ScopedOrder order(GENERATE(grid::Order::kForwards, grid::Order::kBackwards));
  check_losses(at::kCPU);
}

TEST_CASE("the loss kernel matches LibTorch on a GPU", "[gpu][kernels]") {
  if (!testing::have_gpu()) return;
  const GpuKernels gpu;
  check_losses(kFirstGpu);
}

TEST_CASE("the loss kernel predicts the first of equal logits and works without a gradient") {
  const EmulatedKernels emulated;
  const at::Tensor labels = at::zeros({3}, at::kLong);
  labels[1] = 39;
  const at::Tensor sums = at::zeros({3});
  kernels::softmax_loss(at::zeros({3, 40}), {labels}, 0, 1, {}, sums);
  CHECK(sums[0].item<float>() == Approx(3 * std::log(40.0)));
  CHECK(sums[1].item<float>() == 2);
}
