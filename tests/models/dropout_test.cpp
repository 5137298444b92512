#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>

#include <cmath>

#include "models/layer_operations.h"
#include "support/catch.h"

namespace mnist_train::models {
namespace {

constexpr double kP = 0.3;

at::Tensor seeds(std::int64_t count) { return at::arange(count, at::kLong) * 0x1234567890abcdef; }

TEST_CASE("dropout keeps and scales the expected fraction, drawn separately per sample and layer") {
  const at::Tensor x = at::ones({200, 500});
  const at::Tensor out = hashed_dropout(x, seeds(200), 0, kP);
  const at::Tensor mask = out != 0;
  CHECK(std::abs(mask.to(at::kDouble).mean().item<double>() - (1 - kP)) < 0.005);
  CHECK(at::allclose(out.masked_select(mask), at::ones({1}) / (1 - kP)));
  CHECK(std::abs(mask.to(at::kDouble).mean(0).std().item<double>() - std::sqrt(kP * 0.7 / 200)) <
        0.004);
  CHECK(std::abs(mask.to(at::kDouble).mean(1).std().item<double>() - std::sqrt(kP * 0.7 / 500)) <
        0.004);
  const at::Tensor other = hashed_dropout(x, seeds(200), 1, kP) != 0;
  CHECK(std::abs((mask == other).to(at::kDouble).mean().item<double>() - 0.58) < 0.01);
}

TEST_CASE("a sample's dropped elements do not depend on the batch or the memory layout") {
  const at::Tensor x = at::randn({6, 3, 5, 7});
  const at::Tensor full = hashed_dropout(x, seeds(6), 2, kP);
  const at::Tensor parts =
      at::cat({hashed_dropout(x.narrow(0, 0, 2), seeds(6).narrow(0, 0, 2), 2, kP),
               hashed_dropout(x.narrow(0, 2, 4), seeds(6).narrow(0, 2, 4), 2, kP)});
  CHECK(parts.equal(full));
  const at::Tensor last =
      hashed_dropout(x.contiguous(at::MemoryFormat::ChannelsLast), seeds(6), 2, kP);
  CHECK(last.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(last.equal(full));
  CHECK(hashed_dropout(x.slice(3, 0, 7, 2), seeds(6), 2, kP).sizes() ==
        x.slice(3, 0, 7, 2).sizes());
}

TEST_CASE("gradients pass only through elements that were not dropped") {
  at::Tensor x = at::randn({4, 9}).requires_grad_();
  const at::Tensor out = hashed_dropout(x, seeds(4), 0, kP);
  out.backward(at::ones_like(out));
  CHECK(at::allclose(x.grad() * x.detach(), out));
}

TEST_CASE("an empty batch stays empty, and nothing is dropped with probability 0") {
  CHECK(hashed_dropout(at::ones({0, 3}), seeds(0), 0, kP).sizes() == at::IntArrayRef{0, 3});
  const at::Tensor x = at::randn({2, 3});
  CHECK(hashed_dropout(x, seeds(2), 0, 0).equal(x));
}

}  // namespace
}  // namespace mnist_train::models
