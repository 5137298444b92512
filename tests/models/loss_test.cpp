#include "models/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <utility>

#include "support/catch.h"

namespace mnist_train::models {
namespace {

using testing::Approx;

TEST_CASE("the loss is the sum of negative log-likelihoods") {
  const at::Tensor logits = at::randn({50, 10}, at::kFloat).mul(3).set_requires_grad(true);
  const at::Tensor labels = at::randint(0, 10, {50}, at::kLong);
  double expected = 0;
  std::int64_t correct = 0;
  for (std::int64_t i = 0; i < 50; ++i) {
    const at::Tensor row = logits.detach()[i].to(at::kDouble);
    const auto label = labels[i].item<std::int64_t>();
    expected += std::log(row.exp().sum().item<double>()) - row[label].item<double>();
    correct += row.argmax().item<std::int64_t>() == label ? 1 : 0;
  }
  const BatchLoss loss = batch_loss(logits, {labels});
  CHECK(loss.loss_sum.dim() == 0);
  CHECK(loss.loss_sum.item<double>() == Approx(expected).epsilon(1e-5));
  CHECK(loss.correct.item<std::int64_t>() == correct);
  CHECK(loss.loss_sum.requires_grad());
  CHECK_FALSE(loss.correct.requires_grad());
}

TEST_CASE("its gradient is softmax minus the label") {
  const at::Tensor logits = at::randn({4, 3}).set_requires_grad(true);
  const at::Tensor labels = at::tensor({0, 2, 1, 2}, at::kLong);
  batch_loss(logits, {labels}).loss_sum.backward();
  at::Tensor expected = logits.detach().softmax(1);
  for (std::int64_t i = 0; i < 4; ++i) expected[i][labels[i].item<std::int64_t>()] -= 1;
  CHECK(at::allclose(logits.grad(), expected, 1e-5, 1e-6));
}

TEST_CASE("the loss of mixed samples is that of mixed targets, smoothed or not") {
  const at::Tensor logits = at::randn({6, 4}).set_requires_grad(true);
  const at::Tensor labels = at::tensor({0, 1, 2, 3, 0, 1}, at::kLong);
  const at::Tensor others = at::tensor({1, 1, 0, 2, 3, 3}, at::kLong);
  const at::Tensor weights = at::tensor({0.5F, 0.25F, 1.0F, 0.0F, 0.7F, 0.9F});
  for (const double smoothing : {0.0, 0.2}) {
    at::Tensor target = at::full({6, 4}, smoothing / 4);
    double correct = 0;
    for (std::int64_t i = 0; i < 6; ++i) {
      const double weight = weights[i].item<double>();
      const auto guess = logits.detach()[i].argmax().item<std::int64_t>();
      target[i][labels[i].item<std::int64_t>()] += weight * (1 - smoothing);
      target[i][others[i].item<std::int64_t>()] += (1 - weight) * (1 - smoothing);
      correct += guess == labels[i].item<std::int64_t>() ? weight : 0;
      correct += guess == others[i].item<std::int64_t>() ? 1 - weight : 0;
    }
    const BatchLoss loss = batch_loss(logits, {labels, others, weights}, smoothing);
    const at::Tensor expected = -(target * logits.log_softmax(1)).sum();
    CHECK(loss.loss_sum.item<double>() == Approx(expected.item<double>()).epsilon(1e-5));
    CHECK(loss.correct.item<double>() == Approx(correct).epsilon(1e-6));
    CHECK(loss.loss_sum.requires_grad());
  }
  const at::Tensor ones = at::full({6}, 1.0F);
  CHECK(batch_loss(logits, {labels, others, ones}).loss_sum.item<double>() ==
        Approx(batch_loss(logits, {labels}).loss_sum.item<double>()).epsilon(1e-6));
}

TEST_CASE("class weights scale each class's part of the loss, also of the smoothed target") {
  const at::Tensor logits = at::randn({6, 4}).mul(2).set_requires_grad(true);
  const at::Tensor labels = at::tensor({0, 1, 2, 3, 0, 1}, at::kLong);
  const at::Tensor others = at::tensor({1, 1, 0, 2, 3, 3}, at::kLong);
  const at::Tensor shares = at::tensor({0.5F, 0.25F, 1.0F, 0.0F, 0.7F, 0.9F});
  const at::Tensor weights = at::tensor({0.5F, 3.0F, 0.0F, 1.5F});
  for (const double smoothing : {0.0, 0.2}) {
    for (const bool mixed : {false, true}) {
      CAPTURE(smoothing, mixed);
      at::Tensor target = at::full({6, 4}, smoothing / 4);
      for (std::int64_t i = 0; i < 6; ++i) {
        const double share = mixed ? shares[i].item<double>() : 1;
        target[i][labels[i].item<std::int64_t>()] += share * (1 - smoothing);
        target[i][others[i].item<std::int64_t>()] += (1 - share) * (1 - smoothing);
      }
      const at::Tensor expected = -(target * weights * logits.log_softmax(1)).sum();
      const Targets targets{labels, mixed ? others : at::Tensor(), mixed ? shares : at::Tensor(),
                            weights};
      at::Tensor sums = at::zeros({3});
      const BackwardRoot root = training_loss(logits, targets, smoothing, 0.125, sums);
      CHECK(sums[0].item<double>() == Approx(expected.item<double>()).epsilon(1e-5));
      CHECK(sums[2].item<double>() == 6);
      const auto gradient = torch::autograd::grad({root.tensor}, {logits}, {root.gradient});
      const auto exact = torch::autograd::grad({expected * 0.125}, {logits});
      CHECK(at::allclose(gradient[0], exact[0], 1e-5, 1e-6));
    }
  }
}

TEST_CASE("huge logits neither overflow nor lose their order") {
  const at::Tensor logits = at::tensor({1e30F, 0.0F, -1e30F, 88.0F, 90.0F, 89.0F}).reshape({2, 3});
  const BatchLoss loss = batch_loss(logits, {at::tensor({0, 1}, at::kLong)});
  CHECK(std::isfinite(loss.loss_sum.item<double>()));
  CHECK(loss.correct.item<std::int64_t>() == 2);
}

TEST_CASE("a NaN shows in the loss") {
  at::Tensor logits = at::zeros({2, 3});
  logits[1][1] = std::nan("");
  CHECK(std::isnan(batch_loss(logits, {at::tensor({0, 0}, at::kLong)}).loss_sum.item<double>()));
}

/// Computes loss, sums and gradient of the logits by LibTorch's operations in f64.
std::pair<at::Tensor, at::Tensor> expected_loss(const at::Tensor& logits, const Targets& targets,
                                                double smoothing, double scale) {
  const at::Tensor exact = logits.detach().to(at::kDouble).set_requires_grad(true);
  const BatchLoss loss = batch_loss(exact, targets, smoothing);
  (loss.loss_sum * scale).backward();
  return {at::stack({loss.loss_sum.detach().to(at::kDouble), loss.correct.to(at::kDouble),
                     at::full({}, logits.size(0), at::kDouble)}),
          exact.grad()};
}

TEST_CASE("on a CPU the loss of training and its gradient are computed in one pass") {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t classes : {2, 10, 47}) {
      for (const double smoothing : {0.0, 0.1}) {
        for (const bool mixed : {false, true}) {
          CAPTURE(type, classes, smoothing, mixed);
          const at::Tensor logits = at::randn({33, classes}).mul(4).to(type);
          Targets targets{at::randint(0, classes, {33}, at::kLong), {}, {}};
          if (mixed) {
            targets.other_labels = at::randint(0, classes, {33}, at::kLong);
            targets.weights = at::rand({33, 2}).select(1, 0);
          }
          const auto [sums, gradient] = expected_loss(logits, targets, smoothing, 0.125);
          at::Tensor counted = at::ones({3});
          const BackwardRoot root = training_loss(logits, targets, smoothing, 0.125, counted);
          CHECK(root.tensor.is_same(logits));
          CHECK(root.gradient.scalar_type() == type);
          CHECK(at::allclose(counted.to(at::kDouble) - 1, sums, 1e-5, 1e-5));
          const double rounding = type == at::kFloat ? 1e-6 : 1e-3;
          CHECK(at::allclose(root.gradient.to(at::kDouble), gradient, 4 * rounding, rounding));
        }
      }
    }
  }
}

TEST_CASE("of equal largest logits the first is predicted, and a NaN makes the loss one") {
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
