#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/std.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <vector>

#include "kernels/agreement.h"
#include "kernels/emulated_kernels.h"
#include "kernels/operations.h"
#include "support/catch.h"
#include "support/gpu.h"
#include "support/grid/order.h"

using namespace mnist_train;

namespace {

constexpr double kEpsilon = 1e-5;
constexpr double kNewWeight = 0.3;

struct NormCase {
  std::vector<std::int64_t> sizes;
  at::ScalarType type;
  bool has_residual;
  bool relu;
  bool lacks_bias;  // the kernels must add the convolution's bias to x
};

at::Tensor channels_last(const at::Tensor& x) {
  return x.dim() == 4 ? x.contiguous(at::MemoryFormat::ChannelsLast) : x.contiguous();
}

kernels::BatchNormParameters copy_layer_to(at::Device device, kernels::BatchNormParameters layer) {
  for (at::Tensor* tensor : {&layer.running_mean, &layer.running_var, &layer.batches}) {
    *tensor = copy_to(device, *tensor);
  }
  for (at::Tensor* tensor : {&layer.weight, &layer.bias, &layer.convolution_bias}) {
    *tensor = make_leaf(device, *tensor);
  }
  return layer;
}

kernels::BatchNormParameters make_layer(std::int64_t channels) {
  return {at::rand({channels}) + 0.5,
          at::randn({channels}),
          at::randn({channels}),
          at::rand({channels}),
          at::ones({}, at::kLong),
          kEpsilon,
          kNewWeight};
}

/// Compares the kernels with LibTorch's batch norm in fp64.
void check_batch_norm(const NormCase& test, at::Device device) {
  const std::int64_t channels = test.sizes[1];
  const auto draw = [&] { return channels_last(at::randn(test.sizes).to(test.type)); };
  const at::Tensor x = channels_last(
      (draw() * 2 + at::randn({channels})
                        .view(test.sizes.size() == 2 ? at::IntArrayRef{1, channels}
                                                     : at::IntArrayRef{1, channels, 1, 1}))
          .to(test.type));
  const at::Tensor residual = test.has_residual ? draw() : at::Tensor();
  const at::Tensor dy = draw();
  kernels::BatchNormParameters layer = make_layer(channels);
  if (test.lacks_bias) layer.convolution_bias = (at::randn({channels}) * 3).to(test.type);
  const auto exact = [](const at::Tensor& tensor) {
    return tensor.detach().to(at::kDouble).contiguous().clone().requires_grad_();
  };
  const at::Tensor exact_x = exact(x);
  const at::Tensor folded_bias =
      exact(test.lacks_bias ? layer.convolution_bias : at::zeros({channels}));
  const at::Tensor weight = exact(layer.weight);
  const at::Tensor bias = exact(layer.bias);
  const at::Tensor running_mean = layer.running_mean.to(at::kDouble);
  const at::Tensor running_var = layer.running_var.to(at::kDouble);
  at::Tensor exact_y =
      at::batch_norm((exact_x.transpose(1, -1) + folded_bias).transpose(1, -1), weight, bias,
                     running_mean, running_var, /*training=*/true, kNewWeight, kEpsilon, false);
  const at::Tensor exact_residual = test.has_residual ? exact(residual) : at::Tensor();
  if (test.has_residual) exact_y = exact_y + exact_residual;

  layer = copy_layer_to(device, layer);
  const at::Tensor device_x = make_leaf(device, x);
  const at::Tensor device_residual = make_leaf(device, residual);
  const at::Tensor output = kernels::batch_norm(layer, device_x, device_residual, test.relu);
  output.backward(copy_to(device, dy));
  const at::Tensor y = accelerator::to_host(output.detach());
  // Rounding may change the sign of a ReLU's input, so use the kernel's sign.
  const at::Tensor mask = test.relu ? y.gt(0) : at::ones_like(y);
  torch::autograd::backward({exact_y}, {(dy * mask).to(at::kDouble)});

  const at::NoGradGuard no_grad;
  Agreement agreement;
  agreement.add("output", y, test.relu ? exact_y.relu() : exact_y, test.type);
  agreement.add("running mean", layer.running_mean, running_mean, at::kFloat);
  agreement.add("running variance", layer.running_var, running_var, at::kFloat);
  agreement.add("batches", layer.batches, at::ones({}) * 2, at::kFloat);
  // With few rows, the gradient is a small difference of large terms; compare relative to these.
  const at::Tensor variance = exact_x.transpose(0, 1).flatten(1).var(1, /*unbiased=*/false);
  const at::Tensor scale = (variance + kEpsilon).rsqrt() * weight;
  const at::Tensor term = (dy.to(at::kDouble).transpose(1, -1) * scale).transpose(1, -1);
  agreement.add("gradient", accelerator::to_host(device_x.grad()) + term, exact_x.grad() + term,
                test.type);
  agreement.add("gradient of the weight", layer.weight.grad(), weight.grad(), at::kFloat);
  agreement.add("gradient of the bias", layer.bias.grad(), bias.grad(), at::kFloat);
  if (test.has_residual) {
    agreement.add("gradient of the residual", device_residual.grad(), exact_residual.grad(),
                  test.type);
  }
  CAPTURE(test.sizes, test.type, test.has_residual, test.relu, test.lacks_bias);
  CHECK(agreement.difference() == "");
  if (!test.lacks_bias) return;
  const at::Tensor convolution_bias_gradient = accelerator::to_host(layer.convolution_bias.grad());
  CHECK(convolution_bias_gradient.scalar_type() == test.type);
  CHECK(convolution_bias_gradient.eq(0).all().item<bool>());
  CHECK(folded_bias.grad().abs().max().item<double>() <
        1e-9 * (1 + exact_x.grad().norm().item<double>()));
}

void check_batch_norms(at::Device device) {
  torch::manual_seed(7);
  const std::vector<std::vector<std::int64_t>> all_sizes{
      {2, 1},         {2, 8},         {3, 600},       {37, 10},         {1500, 24},
      {4, 3, 7, 5},   {2, 4, 1, 1},   {9, 64, 6, 5},  {10, 16, 14, 14}, {3, 72, 20, 11},
      {2, 129, 3, 3}, {5, 136, 1, 2}, {1700, 1, 1, 1}};
  for (const auto& sizes : all_sizes) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const bool has_residual : {false, true}) {
        for (const bool relu : {false, true}) {
          for (const bool lacks_bias : {false, true}) {
            check_batch_norm({sizes, type, has_residual, relu, lacks_bias}, device);
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("batch norm kernels match LibTorch in fp64") {
  const EmulatedKernels emulated;
  const grid::ScopedOrder order(GENERATE(grid::Order::kForwards, grid::Order::kBackwards));
  check_batch_norms(at::kCPU);
}

TEST_CASE("batch norm kernels match LibTorch on a GPU", "[gpu][kernels]") {
  if (!testing::have_gpu()) return;
  const GpuKernels gpu;
  check_batch_norms(kFirstGpu);
}

TEST_CASE("batch norm kernels compute an accurate variance, whatever the first row") {
  const EmulatedKernels emulated;
  torch::manual_seed(13);
  const at::NoGradGuard no_grad;
  at::Tensor x = at::randn({20000, 4}) * 0.1 + 1000;
  if (GENERATE(false, true)) x[0].fill_(900);
  kernels::BatchNormParameters layer = make_layer(4);
  layer.momentum = 1;  // makes the running variance that of this batch
  kernels::batch_norm(layer, x, {}, false);
  const at::Tensor deviation = x.to(at::kDouble).std(0);
  CHECK((layer.running_var.sqrt() / deviation - 1).abs().max().item<double>() < 1e-3);
}

TEST_CASE("batch norm kernels propagate NaN") {
  const EmulatedKernels emulated;
  const at::NoGradGuard no_grad;
  const kernels::BatchNormParameters layer = make_layer(2);
  at::Tensor x = at::randn({8, 2});
  x[3][1] = std::nan("");
  const at::Tensor y = kernels::batch_norm(layer, x, {}, true);
  CHECK(y.select(1, 1).isnan().all().item<bool>());
  CHECK_FALSE(y.select(1, 0).isnan().any().item<bool>());
}

TEST_CASE("batch norm kernels refuse unsupported inputs") {
  const at::Tensor images = at::randn({2, 3, 4, 5});
  CHECK_FALSE(kernels::supports_batch_norm(images, {}));
  CHECK(kernels::supports_batch_norm(channels_last(images), {}));
  CHECK_FALSE(kernels::supports_batch_norm(channels_last(images).to(at::kDouble), {}));
  CHECK_FALSE(kernels::supports_batch_norm(channels_last(images), images));
  CHECK_FALSE(
      kernels::supports_batch_norm(channels_last(images), channels_last(images).to(at::kBFloat16)));
  CHECK_FALSE(kernels::supports_batch_norm(at::randn({1, 3}), {}));
  CHECK_FALSE(kernels::supports_batch_norm(at::randn({0, 3}), {}));
}
