#include <ATen/ops/conv2d.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>
#include <utility>
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

struct ImageSizes {
  std::int64_t count, channels, height, width;
  bool single = false;  // one input channel
};

/// Channel counts with and without packs, for one tile, several, and unequal ones; images smaller
/// than the kernel; rows for one block and for several.
const std::vector<ImageSizes> kDepthwiseImages{
    {1, 1, 3, 3},       {2, 8, 7, 5},         {3, 5, 1, 9},        {2, 72, 6, 6},
    {1, 130, 5, 4},     {33, 24, 9, 8},       {200, 16, 8, 7},     {2, 656, 4, 4},
    {2, 6, 7, 5, true}, {70, 20, 9, 8, true}, {3, 72, 6, 6, true}, {1, 130, 5, 4, true}};

const std::vector<kernels::ChannelConvolution> kDepthwiseLayers{
    {3, 1, 1}, {3, 2, 1}, {3, 1, 0}, {3, 3, 2}, {5, 1, 2}, {5, 2, 2}, {5, 2, 0}, {5, 1, 4}};

at::Tensor libtorch_convolution(const kernels::ChannelConvolution& layer, const at::Tensor& x,
                                const at::Tensor& weight) {
  return at::conv2d(x, weight, {}, layer.stride, layer.padding, 1, x.size(1));
}

void check_depthwise(const kernels::ChannelConvolution& layer, const ImageSizes& sizes,
                     at::ScalarType type, at::Device device) {
  const std::int64_t inputs = sizes.single ? 1 : sizes.channels;
  const at::Tensor x = at::randn({sizes.count, inputs, sizes.height, sizes.width})
                           .to(type)
                           .contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor weight = at::randn({sizes.channels, 1, layer.kernel, layer.kernel}).to(type);
  if (!kernels::supports_convolution(layer, x, weight)) {
    REQUIRE(std::min(sizes.height, sizes.width) + 2 * layer.padding < layer.kernel);
    return;
  }
  CAPTURE(sizes.count, inputs, sizes.channels, sizes.height, sizes.width, type);
  CAPTURE(layer.kernel, layer.stride, layer.padding);
  const at::Tensor exact_x = x.to(at::kDouble).requires_grad_();
  const at::Tensor exact_weight = weight.to(at::kDouble).requires_grad_();
  const at::Tensor expected = libtorch_convolution(layer, exact_x, exact_weight);
  const at::Tensor dy =
      at::randn(expected.sizes()).to(type).contiguous(at::MemoryFormat::ChannelsLast);
  expected.backward(dy.to(at::kDouble));

  at::Tensor y;
  const auto gradients = [&](bool needs_dx, bool needs_weight_gradient) {
    const at::Tensor device_x = make_leaf(device, x, needs_dx);
    const at::Tensor device_weight = make_leaf(device, weight, needs_weight_gradient);
    y = kernels::convolve(layer, device_x, device_weight);
    y.backward(copy_to(device, dy));
    return std::pair{device_x.grad(), device_weight.grad()};
  };
  const auto [dx, weight_gradient] = gradients(!sizes.single, true);
  Agreement agreement;
  agreement.add("output", y, expected, type);
  if (!sizes.single) agreement.add("gradient", dx, exact_x.grad(), type);
  agreement.add("gradient of the weight", weight_gradient, exact_weight.grad(), type);
  CHECK(agreement.difference() == "");
  if (sizes.single || type != at::kFloat) return;  // the type does not affect what follows
  const auto [none, same] = gradients(false, true);
  CHECK(accelerator::to_host(same).equal(accelerator::to_host(weight_gradient)));
  CHECK(!none.defined());
  CHECK(!gradients(true, false).second.defined());
}

void check_depthwise_layers(at::Device device) {
  torch::manual_seed(12);
  for (const ImageSizes& images : kDepthwiseImages) {
    for (const kernels::ChannelConvolution& layer : kDepthwiseLayers) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        poison_memory();
        check_depthwise(layer, images, type, device);
      }
    }
  }
}

/// Layers for single-channel images and depthwise layers with and without batch norm and bias, and
/// a similar layer that the kernels do not support.
settings::LayerList depthwise_layers() {
  namespace layer = testing::layer;
  return {layer::convolution(16, 3, 1, 1, /*bias=*/false),
          layer::convolution(16, 3, 1, 1, /*bias=*/false, 16),
          layer::batch_norm(),
          layer::relu(),
          layer::convolution(16, 5, 2, 2, /*bias=*/false, 16),
          layer::relu(),
          layer::convolution(16, 3, 1, 1, /*bias=*/true, 16),
          layer::convolution(32, 3, 1, 1, /*bias=*/false, 16),
          layer::flatten(),
          layer::linear(10)};
}

}  // namespace

TEST_CASE("depthwise convolution kernels match LibTorch") {
  const EmulatedKernels emulated;
  const grid::ScopedOrder order(GENERATE(grid::Order::kForwards, grid::Order::kBackwards));
  check_depthwise_layers(at::kCPU);
}

TEST_CASE("depthwise convolution kernels match LibTorch on a GPU", "[gpu][kernels]") {
  if (!testing::have_gpu()) return;
  const GpuKernels gpu;
  check_depthwise_layers(kFirstGpu);
}

TEST_CASE("networks with depthwise convolutions train the same with and without the kernels") {
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  const TrainedOnce expected = train_once(depthwise_layers(), {20, 1, 12, 12}, type);
  const EmulatedKernels emulated;
  const TrainedOnce found = train_once(depthwise_layers(), {20, 1, 12, 12}, type);
  CHECK(count_operations(found.scores, "ChannelConvolutionFunction") == 4);
  check_agreement(found.tensors, expected.tensors, type);
}

TEST_CASE("LibTorch computes convolutions that the depthwise kernels do not support") {
  const at::Tensor x = at::randn({2, 6, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor weight = at::randn({6, 1, 3, 3});
  CHECK(kernels::supports_convolution({3, 1, 1}, x, weight));
  CHECK(!kernels::supports_convolution({3, 1, 3}, x, weight));
  for (const std::int64_t channels : {13056, 13057}) {  // five counters per 64 channels
    CHECK(kernels::supports_convolution({5, 1, 2}, at::zeros({1, channels, 2, 2}),
                                        at::zeros({channels, 1, 5, 5})) == (channels == 13056));
  }
  CHECK(!kernels::supports_convolution({7, 1, 3}, x, at::randn({6, 1, 7, 7})));
  CHECK(!kernels::supports_convolution({3, 1, 1}, x.to(at::kBFloat16), weight));
  const at::Tensor single = at::randn({2, 1, 8, 8});
  CHECK(kernels::supports_convolution({3, 1, 1}, single, weight));
  CHECK(!kernels::supports_convolution({3, 1, 1}, single.clone().requires_grad_(), weight));
  const EmulatedKernels emulated;
  using Options = torch::nn::Conv2dOptions;
  for (const Options& options :
       {Options(6, 6, 3).groups(2), Options(6, 12, 3).groups(6), Options(6, 6, 7).groups(6),
        Options(6, 6, 3).groups(6).dilation(2), Options(6, 6, {3, 5}).groups(6),
        Options(6, 6, 3).groups(6).stride({1, 2}), Options(6, 6, 3).groups(6).padding({1, 0}),
        Options(6, 6, 3).groups(6).padding(torch::kSame)}) {
    const auto layer = std::make_shared<torch::nn::Conv2dImpl>(Options(options).bias(false));
    const at::Tensor y = models::convolve(*layer, x);
    CHECK(y.equal(layer->forward(x)));
    CHECK(count_operations(y, "ChannelConvolutionFunction") == 0);
  }
}
