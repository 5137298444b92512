#include "models/loss.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

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
  const BatchLoss loss = batch_loss(logits, labels);
  CHECK(loss.loss_sum.dim() == 0);
  CHECK(loss.loss_sum.item<double>() == Approx(expected).epsilon(1e-5));
  CHECK(loss.correct.item<std::int64_t>() == correct);
  CHECK(loss.loss_sum.requires_grad());
  CHECK_FALSE(loss.correct.requires_grad());
}

TEST_CASE("its gradient is softmax minus the label") {
  const at::Tensor logits = at::randn({4, 3}).set_requires_grad(true);
  const at::Tensor labels = at::tensor({0, 2, 1, 2}, at::kLong);
  batch_loss(logits, labels).loss_sum.backward();
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
    const BatchLoss loss = mixed_batch_loss(logits, labels, others, weights, smoothing);
    const at::Tensor expected = -(target * logits.log_softmax(1)).sum();
    CHECK(loss.loss_sum.item<double>() == Approx(expected.item<double>()).epsilon(1e-5));
    CHECK(loss.correct.item<double>() == Approx(correct).epsilon(1e-6));
    CHECK(loss.loss_sum.requires_grad());
  }
  const at::Tensor ones = at::full({6}, 1.0F);
  CHECK(mixed_batch_loss(logits, labels, others, ones).loss_sum.item<double>() ==
        Approx(batch_loss(logits, labels).loss_sum.item<double>()).epsilon(1e-6));
}

TEST_CASE("huge logits neither overflow nor lose their order") {
  const at::Tensor logits = at::tensor({1e30F, 0.0F, -1e30F, 88.0F, 90.0F, 89.0F}).reshape({2, 3});
  const BatchLoss loss = batch_loss(logits, at::tensor({0, 1}, at::kLong));
  CHECK(std::isfinite(loss.loss_sum.item<double>()));
  CHECK(loss.correct.item<std::int64_t>() == 2);
}

TEST_CASE("a NaN shows in the loss") {
  at::Tensor logits = at::zeros({2, 3});
  logits[1][1] = std::nan("");
  CHECK(std::isnan(batch_loss(logits, at::tensor({0, 0}, at::kLong)).loss_sum.item<double>()));
}

}  // namespace
}  // namespace mnist_train::models
