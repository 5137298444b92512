#include "models/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "support/catch.h"

namespace mnist_train::models {
namespace {

using testing::Approx;

constexpr std::int64_t kSamples = 33;
constexpr double kScale = 0.125;

/// Computes the loss by definition: the cross entropy with the smoothed and mixed targets, with
/// each class scaled by its weight.
BatchLoss reference_loss(const at::Tensor& logits, const Targets& targets, double smoothing) {
  const std::int64_t classes = logits.size(1);
  at::Tensor mixed = at::one_hot(targets.labels, classes).to(at::kDouble);
  if (targets.weights.defined()) {
    const at::Tensor share = targets.weights.unsqueeze(1);
    mixed = mixed * share + at::one_hot(targets.other_labels, classes) * (1 - share);
  }
  at::Tensor target = (1 - smoothing) * mixed + smoothing / static_cast<double>(classes);
  if (targets.class_weights.defined()) target = target * targets.class_weights;
  const at::Tensor log_probabilities = logits - logits.exp().sum(1, /*keepdim=*/true).log();
  return {-(target * log_probabilities).sum(),
          mixed.gather(1, logits.detach().argmax(1, /*keepdim=*/true)).sum()};
}

void check_loss(const at::Tensor& logits, const Targets& targets, double smoothing) {
  const at::Tensor exact = logits.detach().to(at::kDouble).set_requires_grad(true);
  const BatchLoss expected = reference_loss(exact, targets, smoothing);
  const BatchLoss loss = batch_loss(logits, targets, smoothing);
  CHECK(loss.loss_sum.dim() == 0);
  CHECK(loss.loss_sum.item<double>() == Approx(expected.loss_sum.item<double>()).epsilon(1e-5));
  CHECK(loss.correct.item<double>() == Approx(expected.correct.item<double>()).epsilon(1e-6));
  CHECK(loss.loss_sum.requires_grad());
  CHECK_FALSE(loss.correct.requires_grad());
  const bool is_fp32 = logits.scalar_type() == at::kFloat;
  const at::Tensor exact_gradient =
      torch::autograd::grad({expected.loss_sum}, {exact}, {}, /*retain_graph=*/true)[0];
  CHECK(at::allclose(torch::autograd::grad({loss.loss_sum}, {logits})[0].to(at::kDouble),
                     exact_gradient, is_fp32 ? 1e-5 : 8e-3, is_fp32 ? 1e-6 : 1e-3));

  const at::Tensor sums = at::ones({3});
  const BackwardRoot root = training_loss(logits, targets, smoothing, kScale, sums);
  CHECK(sums[0].item<double>() - 1 ==
        Approx(expected.loss_sum.item<double>()).epsilon(1e-5).margin(1e-5));
  CHECK(sums[1].item<double>() - 1 ==
        Approx(expected.correct.item<double>()).epsilon(1e-5).margin(1e-5));
  CHECK(sums[2].item<double>() - 1 == kSamples);
  const bool is_fused = !targets.class_weights.defined();
  CHECK(root.tensor.is_same(logits) == is_fused);
  const at::Tensor gradient =
      is_fused ? root.gradient : torch::autograd::grad({root.tensor}, {logits})[0];
  CHECK(gradient.scalar_type() == logits.scalar_type());
  const double rounding = logits.scalar_type() == at::kFloat ? 1e-6 : 1e-3;
  CHECK(at::allclose(gradient.to(at::kDouble),
                     torch::autograd::grad({expected.loss_sum * kScale}, {exact})[0], 4 * rounding,
                     rounding));
}

TEST_CASE("losses, gradients and correct predictions match the definition") {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t classes : {2, 10, 47}) {
      for (const double smoothing : {0.0, 0.2}) {
        for (const bool mixed : {false, true}) {
          for (const bool weighted : {false, true}) {
            CAPTURE(type, classes, smoothing, mixed, weighted);
            const at::Tensor logits =
                at::randn({kSamples, classes}).mul(4).to(type).set_requires_grad(true);
            Targets targets{at::randint(0, classes, {kSamples}, at::kLong), {}, {}};
            if (mixed) {
              targets.other_labels = at::randint(0, classes, {kSamples}, at::kLong);
              targets.weights = at::rand({kSamples, 2}).select(1, 0);
              targets.weights[0].fill_(1);
              targets.weights[1].fill_(0);
            }
            if (weighted) {
              targets.class_weights = at::rand({classes}) * 3;
              targets.class_weights[0].fill_(0);
            }
            check_loss(logits, targets, smoothing);
          }
        }
      }
    }
  }
}

TEST_CASE("huge logits neither overflow nor lose their order") {
  const at::Tensor logits = at::tensor({1e30F, 0.0F, -1e30F, 88.0F, 90.0F, 89.0F}).reshape({2, 3});
  const BatchLoss loss = batch_loss(logits, {at::tensor({0, 1}, at::kLong)});
  CHECK(std::isfinite(loss.loss_sum.item<double>()));
  CHECK(loss.correct.item<std::int64_t>() == 2);
}

TEST_CASE("a NaN in the logits makes the loss NaN") {
  at::Tensor logits = at::zeros({2, 3});
  logits[1][1] = std::nan("");
  CHECK(std::isnan(batch_loss(logits, {at::tensor({0, 0}, at::kLong)}).loss_sum.item<double>()));
}

TEST_CASE("the first of equal logits is predicted, and a NaN makes the training loss NaN") {
  at::Tensor sums = at::zeros({3});
  const at::Tensor logits = at::tensor({1.0F, 3.0F, 3.0F, 2.0F, 2.0F, 2.0F}).view({2, 3});
  training_loss(logits, {at::tensor({1, 0}, at::kLong), {}, {}}, 0, 1, sums);
  CHECK(sums[1].item<float>() == 2);
  logits[1][2].fill_(std::nanf(""));
  training_loss(logits, {at::tensor({1, 0}, at::kLong), {}, {}}, 0, 1, sums);
  CHECK(std::isnan(sums[0].item<float>()));
}

}  // namespace
}  // namespace mnist_train::models
