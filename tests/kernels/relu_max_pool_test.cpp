#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>
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

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

struct PoolingCase {
  std::int64_t images, channels, height, width;
};

/// The smallest sizes and odd ones, channels for each pack width, more channels than a block has
/// threads, and more windows than all blocks process at once.
const std::vector<PoolingCase> kCases{
    {1, 1, 2, 2},  {2, 1, 3, 3},     {3, 3, 2, 5},   {2, 20, 24, 24}, {3, 50, 8, 8},
    {4, 8, 7, 6},  {1, 16, 5, 9},    {2, 6, 9, 4},   {2, 33, 3, 4},   {1, 24, 11, 2},
    {2, 64, 6, 6}, {1, 130, 4, 2},   {1, 517, 2, 3}, {1, 1030, 3, 3}, {1, 4800, 2, 2},
    {7, 1, 2, 3},  {1, 257, 34, 34},
};

struct Passes {
  at::Tensor out, gradient, bias;  // gradients, except `out`
};

template <class Function>
Passes both_passes(const Function& function, const at::Tensor& x, const at::Tensor& bias,
                   const at::Tensor& upstream) {
  const at::Tensor leaf = x.detach().clone().requires_grad_();
  const at::Tensor bias_leaf =
      bias.defined() ? bias.detach().clone().requires_grad_() : at::Tensor();
  const at::Tensor out = function(leaf, bias_leaf);
  out.backward(upstream);
  using accelerator::to_host;
  return {to_host(out.detach()), to_host(leaf.grad()),
          bias.defined() ? to_host(bias_leaf.grad()) : at::Tensor()};
}

at::Tensor reference(const at::Tensor& x, const at::Tensor& bias) {
  return at::max_pool2d(at::relu(bias.defined() ? x + bias.view({-1, 1, 1}) : x), 2);
}

/// Returns random numbers with few distinct values, so that most windows have ties.
at::Tensor tied_values(at::IntArrayRef sizes) { return (at::randn(sizes) * 2).round() / 2; }

void check_pooling(const PoolingCase& test, at::ScalarType type, bool has_bias, bool planar,
                   at::Device device) {
  const at::Tensor x = tied_values({test.images, test.channels, test.height, test.width})
                           .to(type, false, false, kChannelsLast);
  const at::Tensor bias = has_bias ? at::randn({test.channels}).to(type) : at::Tensor();
  const at::Tensor upstream =
      at::randn({test.images, test.channels, test.height / 2, test.width / 2}).to(type);
  const Passes ours = both_passes(
      [&](const at::Tensor& values, const at::Tensor& added) {
        const at::Tensor out = models::relu_max_pool(values, added, /*flatten=*/planar);
        return planar ? out.view(upstream.sizes()) : out;
      },
      copy_to(device, x), copy_to(device, bias), copy_to(device, upstream));
  const Passes expected = both_passes(reference, x, bias, upstream);
  CAPTURE(test.images, test.channels, test.height, test.width, type, has_bias, planar);
  CHECK(ours.out.is_contiguous(planar ? at::MemoryFormat::Contiguous : kChannelsLast));
  CHECK(ours.out.equal(expected.out));
  CHECK(ours.gradient.is_contiguous(kChannelsLast));
  CHECK(ours.gradient.equal(expected.gradient));
  if (!has_bias) return;
  const at::NoGradGuard no_grad;
  Agreement agreement;  // of sums, whose order differs
  const at::Tensor sums = expected.gradient.to(at::kDouble).sum({0, 2, 3});
  agreement.add("gradient of the bias", ours.bias, sums, type);
  CHECK(agreement.difference() == "");
}

void check_poolings(at::Device device) {
  torch::manual_seed(8);
  for (const PoolingCase& test : kCases) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const bool has_bias : {false, true}) {
        for (const bool planar : {false, true}) {
          poison_memory();
          check_pooling(test, type, has_bias, planar, device);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("ReLU and pooling kernels match LibTorch") {
  const EmulatedKernels emulated;
  const grid::ScopedOrder order(GENERATE(grid::Order::kForwards, grid::Order::kBackwards));
  check_poolings(at::kCPU);
}

TEST_CASE("ReLU and pooling kernels match LibTorch on a GPU", "[gpu][kernels]") {
  if (!testing::have_gpu()) return;
  const GpuKernels gpu;
  check_poolings(kFirstGpu);
}

TEST_CASE("ReLU and pooling kernels accept unaligned parameters and images") {
  const EmulatedKernels emulated;
  torch::manual_seed(10);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t from : {1, 2, 3, 4, 8}) {
      const at::Tensor buffer = at::randn({from + 2 * 8 * 4 * 4}).to(type);
      const at::Tensor bias = buffer.slice(0, from, from + 8);
      const at::Tensor x =
          buffer.slice(0, from).view({2, 4, 4, 8}).permute({0, 3, 1, 2});  // channels last
      const at::Tensor expected = reference(x, bias);
      CHECK(models::relu_max_pool(x, bias).equal(expected));
    }
  }
}

TEST_CASE("max pooling treats NaN as the largest value and selects the first of equal values") {
  const EmulatedKernels emulated;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  // One window per channel.
  const at::Tensor windows = torch::tensor({{kInf, kNan, 1.F, kNan},
                                            {1.F, 2.F, 2.F, 0.F},
                                            {-1.F, -0.F, 0.F, -kInf},
                                            {-1.F, 3.F, kInf, kInf},
                                            {-kNan, 5.F, 6.F, 7.F}});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = windows.view({1, 5, 2, 2}).to(type).requires_grad_();
    const at::Tensor out = models::relu_max_pool(x);
    out.backward(at::ones_like(out));
    const at::Tensor values = out.detach().flatten().to(at::kFloat);
    CHECK(values[0].isnan().item<bool>());
    CHECK(values.slice(0, 1, 4).equal(torch::tensor({2.F, 0.F, kInf})));
    CHECK(!values[2].signbit().item<bool>());
    CHECK(values[4].isnan().item<bool>());
    const at::Tensor expected =
        torch::tensor({{0, 1, 0, 0}, {0, 1, 0, 0}, {0, 0, 0, 0}, {0, 0, 1, 0}, {1, 0, 0, 0}});
    CHECK(x.grad().view({5, 4}).to(at::kLong).equal(expected.to(at::kLong)));
  }
}

TEST_CASE("convolution, ReLU and pooling give the same results with and without the kernels") {
  torch::manual_seed(11);
  const at::Tensor images = at::randn({3, 3, 12, 11}).contiguous(kChannelsLast);
  using Options = torch::nn::Conv2dOptions;
  std::vector<torch::nn::Conv2d> layers;
  for (const auto& options :
       {Options(3, 20, 5), Options(3, 8, 3).padding(1), Options(3, 6, 3).stride(2),
        Options(3, 6, 3).groups(3), Options(3, 6, 3).bias(false), Options(3, 7, {3, 2}),
        Options(3, 6, 3).dilation(2), Options(3, 6, 3).padding(torch::kSame)}) {
    layers.emplace_back(options);
  }
  const auto passes = [&] {
    std::vector<at::Tensor> results;
    for (torch::nn::Conv2d& layer : layers) {
      layer->zero_grad();
      const at::Tensor out = models::convolve_relu_max_pool(*layer, images);
      out.square().sum().backward();
      results.push_back(out.detach());
      for (const auto& parameter : layer->parameters()) {
        results.push_back(parameter.grad().clone());
      }
    }
    return results;
  };
  const std::vector<at::Tensor> expected = passes();
  const EmulatedKernels emulated;
  const std::vector<at::Tensor> ours = passes();
  check_agreement(ours, expected, at::kFloat);
}

TEST_CASE("networks that flatten pooled images train the same with and without a copy") {
  const bool has_norm = GENERATE(false, true);
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  namespace layer = testing::layer;
  settings::LayerList layers{layer::convolution(12, 3)};
  if (has_norm) layers.push_back({"", settings::GroupNormLayer{4}});
  layers.insert(layers.end(),
                {layer::relu(), layer::max_pool(), layer::flatten(), layer::linear(10)});
  settings::LayerList copying_layers = layers;
  settings::AvgPool2dLayer identity;
  identity.kernel_size = {1, 1};
  copying_layers.insert(copying_layers.end() - 2, settings::Layer{"", identity});
  const auto train = [&](const settings::LayerList& list) {
    return train_once(list, {6, 2, 11, 12}, type);
  };
  TrainedOnce reference_run = train(layers);
  const EmulatedKernels emulated;
  const TrainedOnce copied = train(copying_layers);
  TrainedOnce found = train(layers);
  // Without a copy, the flattened images are a view of the pooled ones.
  CHECK(count_operations(copied.scores, "UnsafeViewBackward") == 1);
  CHECK(count_operations(found.scores, "UnsafeViewBackward") == 0);
  REQUIRE(found.tensors.size() == copied.tensors.size());
  for (std::size_t i = 0; i < found.tensors.size(); ++i) {
    CAPTURE(i, type, has_norm);
    CHECK(found.tensors[i].equal(copied.tensors[i]));
  }
  // In bf16, the computations round at different points, so different elements may tie.
  if (type == at::kBFloat16) {
    found.tensors.resize(1);  // the scores
    reference_run.tensors.resize(1);
  }
  check_agreement(found.tensors, reference_run.tensors, type);
}

TEST_CASE("LibTorch computes ReLU and pooling that the kernels do not support") {
  const EmulatedKernels emulated;
  torch::manual_seed(12);
  const at::Tensor bias = at::randn({4});
  for (const at::Tensor& x : {at::randn({2, 4, 5, 5}, at::kDouble), at::randn({0, 4, 4, 4})}) {
    const Passes ours =
        both_passes([](const auto&... tensors) { return models::relu_max_pool(tensors...); }, x,
                    bias.to(x.scalar_type()),
                    at::ones({x.size(0), 4, x.size(2) / 2, x.size(3) / 2}, x.scalar_type()));
    CHECK(!kernels::supports_relu_max_pool(x, bias.to(x.scalar_type())));
    CHECK(ours.out.equal(reference(x, bias.to(x.scalar_type()))));
    CHECK(ours.gradient.sizes() == x.sizes());
    CHECK(ours.bias.defined());
  }
  CHECK(kernels::supports_relu_max_pool(at::randn({2, 4, 5, 5}), bias));
  CHECK(!kernels::supports_relu_max_pool(at::randn({2, 4, 5, 5}), bias.to(at::kBFloat16)));
  CHECK(!kernels::supports_relu_max_pool(at::randn({2, 4, 1, 5}), bias));
  CHECK(!kernels::supports_relu_max_pool(at::randn({4, 5, 5}), bias));
}
