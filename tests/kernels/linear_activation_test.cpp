#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/agreement.h"
#include "kernels/emulated_kernels.h"
#include "kernels/operations.h"
#include "kernels/train_once.h"
#include "models/layer_operations.h"
#include "support/catch.h"
#include "support/count_operations.h"
#include "support/gpu.h"
#include "support/grid/order.h"
#include "support/layers.h"

using namespace mnist_train;

namespace {

using kernels::LinearFunction;
using settings::Activation;

struct Sizes {
  std::int64_t rows, channels;
};

/// Channel counts with and without packs, for several tiles and unequal ones; rows for one block,
/// for several, and for several iterations of each thread.
const std::vector<Sizes> kSizes{{1, 1},   {1, 8},   {2, 3},     {3, 500},  {5, 128},   {64, 10},
                                {7, 513}, {9, 520}, {100, 33},  {130, 64}, {1500, 1},  {700, 12},
                                {33, 72}, {2, 656}, {333, 130}, {65, 256}, {2100, 33}, {601, 40}};

at::Tensor derivative(LinearFunction function, const at::Tensor& y, const at::Tensor& dy) {
  const at::Tensor exact = dy.to(at::kDouble);
  return (function == LinearFunction::kRelu ? at::threshold_backward(exact, y.to(at::kDouble), 0)
                                            : exact * (1 - y.to(at::kDouble).square()))
      .to(y.scalar_type());
}

struct LinearPasses {
  at::Tensor y, dx, bias_gradient;
};

/// Returns the output for x [N,C], and the gradients given the output's gradient dy. The weight is
/// the identity and the bias is 0, so `dx` is the gradient of the linear layer's output.
LinearPasses linear_passes(LinearFunction function, const at::Tensor& x, const at::Tensor& dy,
                           at::Device device = at::kCPU) {
  const at::Tensor device_x = make_leaf(device, x);
  const at::Tensor weight = copy_to(device, at::eye(x.size(1)).to(x.scalar_type()));
  const at::Tensor bias = make_leaf(device, at::zeros({x.size(1)}, x.scalar_type()));
  const at::Tensor y = kernels::linear_activation(function, device_x, weight, bias);
  y.backward(copy_to(device, dy));
  using accelerator::to_host;
  return {to_host(y.detach()), to_host(device_x.grad()), to_host(bias.grad())};
}

void check_linear_activation(const Sizes& sizes, at::ScalarType type, LinearFunction function,
                             at::Device device) {
  const at::Tensor x = at::randn({sizes.rows, sizes.channels}).to(type);
  const at::Tensor dy = at::randn({sizes.rows, sizes.channels}).to(type);
  const LinearPasses found = linear_passes(function, x, dy, device);
  const at::Tensor expected = derivative(function, found.y, dy);
  CAPTURE(sizes.rows, sizes.channels, type, function == LinearFunction::kTanh);
  Agreement agreement;
  agreement.add("output", found.y, function == LinearFunction::kRelu ? at::relu(x) : at::tanh(x),
                type);
  agreement.add("gradient", found.dx, expected, type);
  agreement.add("gradient of the bias", found.bias_gradient, found.dx.to(at::kDouble).sum(0), type);
  CHECK(agreement.difference() == "");
  if (function == LinearFunction::kRelu) CHECK(found.dx.equal(expected));
  CHECK(found.bias_gradient.scalar_type() == type);
  CHECK(linear_passes(function, x, dy, device).bias_gradient.equal(found.bias_gradient));
}

void check_linear_activations(at::Device device) {
  torch::manual_seed(8);
  for (const Sizes& sizes : kSizes) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const LinearFunction function : {LinearFunction::kRelu, LinearFunction::kTanh}) {
        poison_memory();
        check_linear_activation(sizes, type, function, device);
      }
    }
  }
}

std::shared_ptr<torch::nn::LinearImpl> linear(std::int64_t inputs, std::int64_t outputs,
                                              bool bias = true) {
  return std::make_shared<torch::nn::LinearImpl>(
      torch::nn::LinearOptions(inputs, outputs).bias(bias));
}

/// Linear layers with each activation: some in a sequential, one without a bias, and the last one
/// without an activation.
settings::LayerList linear_layers() {
  namespace layer = testing::layer;
  return {layer::flatten(),
          layer::linear(64),
          layer::relu(),
          layer::sequential({layer::linear(33), layer::function(Activation::kTanh)}),
          layer::linear(24, /*bias=*/false),
          layer::relu(),
          layer::linear(16),
          layer::function(Activation::kSigmoid),
          layer::linear(10)};
}

}  // namespace

TEST_CASE("the linear activation kernel matches LibTorch") {
  const EmulatedKernels emulated;
  const grid::ScopedOrder order(GENERATE(grid::Order::kForwards, grid::Order::kBackwards));
  check_linear_activations(at::kCPU);
}

TEST_CASE("the linear activation kernel matches LibTorch on a GPU", "[gpu][kernels]") {
  if (!testing::have_gpu()) return;
  const GpuKernels gpu;
  check_linear_activations(kFirstGpu);
}

TEST_CASE("the linear activation kernel accepts unaligned gradients and propagates NaN") {
  const EmulatedKernels emulated;
  torch::manual_seed(10);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t from : {1, 2, 4, 8}) {
      const at::Tensor x = at::randn({9, 16}).to(type);
      const at::Tensor dy = at::randn({from + 9 * 16}).to(type).slice(0, from).view({9, 16});
      x[3][5] = kNan;
      const LinearPasses found = linear_passes(LinearFunction::kRelu, x, dy);
      CHECK(found.dx.equal(derivative(LinearFunction::kRelu, found.y, dy)));
      CHECK(found.dx[3][5].equal(dy[3][5]));
      x[5][6] = -1;
      dy[5][6] = kNan;
      x[4][5] = 2;
      dy[4][5] = kNan;
      const at::Tensor bias_gradient = linear_passes(LinearFunction::kRelu, x, dy).bias_gradient;
      CHECK(bias_gradient[5].isnan().item<bool>());
      CHECK(!bias_gradient[6].isnan().item<bool>());
    }
  }
}

TEST_CASE("networks with linear layers train the same with and without the kernel") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  const TrainedOnce expected = train_once(linear_layers(), {70, 1, 6, 6}, type);
  const EmulatedKernels emulated;
  const TrainedOnce found = train_once(linear_layers(), {70, 1, 6, 6}, type);
  CHECK(count_operations(found.scores, "LinearActivation") == 2);
  check_agreement(found.tensors, expected.tensors, type);
}

TEST_CASE("a linear layer with an activation computes only the required gradients") {
  const EmulatedKernels emulated;
  torch::manual_seed(11);
  const auto layer = linear(6, 8);
  const auto operation = [&](const at::Tensor& x) {
    return models::linear_activation(*layer, LinearFunction::kRelu, x);
  };
  const at::Tensor x = at::randn({5, 6});
  operation(x).sum().backward();  // the gradient is an expanded tensor
  CHECK(!x.grad().defined());
  const at::Tensor expected = at::relu(layer->forward(x)).gt(0).to(at::kFloat);
  CHECK(layer->bias.grad().equal(expected.sum(0)));
  layer->zero_grad();
  layer->weight.set_requires_grad(false);
  layer->bias.set_requires_grad(false);
  const at::Tensor leaf = x.clone().requires_grad_();
  operation(leaf).sum().backward();
  CHECK(leaf.grad().allclose(expected.mm(layer->weight)));
  CHECK(!layer->weight.grad().defined());
  CHECK(!layer->bias.grad().defined());
}

TEST_CASE("LibTorch computes linear layers that the kernel does not support") {
  const at::Tensor weight = at::randn({4, 6});
  const at::Tensor bias = at::randn({4});
  CHECK(kernels::supports_linear_activation(at::randn({2, 6}), weight, bias));
  CHECK(!kernels::supports_linear_activation(at::randn({2, 6}), weight, {}));
  CHECK(!kernels::supports_linear_activation(at::randn({0, 6}), weight, bias));
  CHECK(!kernels::supports_linear_activation(at::randn({2, 3, 6}), weight, bias));
  CHECK(!kernels::supports_linear_activation(at::randn({2, 6}).to(at::kBFloat16), weight, bias));
  const EmulatedKernels emulated;
  for (const bool has_bias : {false, true}) {
    const auto layer = linear(6, 4, has_bias);
    const at::Tensor x = has_bias ? at::randn({2, 3, 6}) : at::randn({5, 6});
    const at::Tensor out = models::linear_activation(*layer, LinearFunction::kRelu, x);
    CHECK(out.equal(at::relu(layer->forward(x))));
    out.sum().backward();
    CHECK(layer->weight.grad().defined());
  }
}
