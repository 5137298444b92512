#include <ATen/Parallel.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "models/pooled_convolution.h"
#include "models/relu_max_pool.h"
#include "support/catch.h"

namespace mnist_train::models {
namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

struct Case {
  std::int64_t images, height, width, in_channels, kernel, out_channels;
};

/// Numbers whose sums of products fp32 holds exactly, in any order.
at::Tensor small_integers(at::IntArrayRef sizes) {
  return at::randint(-2, 3, sizes, at::kFloat).contiguous(kChannelsLast);
}

torch::nn::Conv2d make_layer(const Case& c, at::ScalarType type = at::kBFloat16) {
  torch::nn::Conv2d layer(torch::nn::Conv2dOptions(c.in_channels, c.out_channels, c.kernel));
  const at::NoGradGuard no_grad;
  layer->weight.set_data(
      small_integers({c.out_channels, c.in_channels, c.kernel, c.kernel}).to(type));
  layer->bias.set_data(at::randint(-2, 3, {c.out_channels}, type));
  return layer;
}

at::Tensor make_upstream(const Case& c, at::ScalarType type) {
  return small_integers({c.images, c.out_channels, (c.height - c.kernel + 1) / 2,
                         (c.width - c.kernel + 1) / 2})
      .to(type);
}

at::Tensor pool(torch::nn::Conv2d& layer, const at::Tensor& images) {
  GradientPlaces places;
  return convolve_relu_max_pool(*layer, images, places);
}

at::Tensor pool_flatten(torch::nn::Conv2d& layer, const at::Tensor& images) {
  GradientPlaces places;
  return convolve_relu_max_pool(*layer, images, places, /*flatten=*/true);
}

struct Passes {
  at::Tensor out, images, weight, bias;  // gradients but for `out`
};

template <class Function>
Passes both_passes(torch::nn::Conv2d& layer, const at::Tensor& images, const at::Tensor& upstream,
                   const Function& function) {
  layer->zero_grad();
  const at::Tensor leaf = images.detach().clone(kChannelsLast).requires_grad_();
  const at::Tensor out = function(layer, leaf);
  out.backward(upstream);
  return {out.detach(), leaf.grad(), layer->weight.grad().clone(), layer->bias.grad().clone()};
}

/// In fp32, rounded like the bf16 tensors between the three operations.
at::Tensor reference(torch::nn::Conv2d& layer, const at::Tensor& images) {
  const at::Tensor convolved =
      at::conv2d(images.to(at::kFloat), layer->weight.to(at::kFloat), layer->bias.to(at::kFloat));
  return at::max_pool2d(at::relu(convolved.to(images.scalar_type())), 2);
}

/// A way to do the three operations that this processor has.
struct Way {
  std::string name;
  const PooledConvolutionPasses* passes;
  at::ScalarType type;
};

std::vector<Way> ways() {
  std::vector<Way> all{{"bf16 in lanes", images_in_lanes(at::kBFloat16), at::kBFloat16},
                       {"fp32 in lanes", images_in_lanes(at::kFloat), at::kFloat},
                       {"bf16 by image", image_by_image(at::kBFloat16), at::kBFloat16}};
  std::erase_if(all, [](const Way& way) { return way.passes == nullptr; });
  return all;
}

Passes both_passes(const Way& way, const torch::nn::Conv2d& layer, const at::Tensor& images,
                   const at::Tensor& upstream, bool planar) {
  const auto format = planar ? at::MemoryFormat::Contiguous : kChannelsLast;
  const at::Tensor weights = layer->weight.detach().contiguous(kChannelsLast);
  const PooledConvolution result =
      way.passes->forward(images, weights, layer->bias.detach(), planar);
  CHECK(result.out.is_contiguous(format));
  const PooledConvolutionGradients gradients = way.passes->backward(
      {result.images, result.choice, weights, upstream.contiguous(format), planar,
       /*wants_images=*/true, /*wants_parameters=*/true, /*wanted=*/{}});
  return {result.out, gradients.images, gradients.weights, gradients.bias};
}

void check_equal(const Passes& ours, const Passes& expected) {
  CHECK(ours.out.equal(expected.out));
  CHECK(ours.images.equal(expected.images));
  CHECK(ours.weight.equal(expected.weight));
  CHECK(ours.bias.equal(expected.bias));
}

const std::vector<Case> kCases{
    {64, 28, 28, 1, 5, 20}, {64, 12, 12, 20, 5, 50}, {5, 28, 28, 1, 5, 6}, {5, 12, 12, 6, 3, 16},
    {2, 9, 11, 3, 4, 7},    {3, 7, 8, 70, 2, 70},    {1, 6, 6, 2, 1, 1},   {2, 5, 5, 1, 4, 33},
    {3, 9, 8, 3, 3, 7},     {2, 6, 10, 1, 1, 3},     {70, 8, 7, 5, 3, 13},
};

std::string to_string(const Case& c) {
  return std::to_string(c.images) + " images " + std::to_string(c.height) + "x" +
         std::to_string(c.width) + "x" + std::to_string(c.in_channels) + ", kernel " +
         std::to_string(c.kernel) + ", " + std::to_string(c.out_channels) + " channels";
}

TEST_CASE("each implementation of convolution, ReLU and pooling gives the exact sums") {
  torch::manual_seed(5);
  for (const Way& way : ways()) {
    for (const Case& c : kCases) {
      INFO(way.name << ": " << to_string(c));
      torch::nn::Conv2d layer = make_layer(c, way.type);
      const at::Tensor images =
          small_integers({c.images, c.in_channels, c.height, c.width}).to(way.type);
      const at::Tensor upstream = make_upstream(c, way.type);
      const Passes expected = both_passes(layer, images, upstream, reference);
      for (const bool planar : {false, true}) {
        check_equal(both_passes(way, layer, images, upstream, planar), expected);
      }
    }
  }
}

TEST_CASE("fused convolution, ReLU and pooling give the exact sums, forward and backward") {
  torch::manual_seed(5);
  for (const Case& c : kCases) {
    INFO(to_string(c));
    torch::nn::Conv2d layer = make_layer(c);
    const at::Tensor images =
        small_integers({c.images, c.in_channels, c.height, c.width}).to(at::kBFloat16);
    const at::Tensor upstream = make_upstream(c, at::kBFloat16);
    const Passes expected = both_passes(layer, images, upstream, reference);
    check_equal(both_passes(layer, images, upstream, pool), expected);
    const auto as_vectors = [](torch::nn::Conv2d& of, const at::Tensor& x) {
      const at::Tensor pooled = pool(of, x);
      return pool_flatten(of, x).view(pooled.sizes());
    };
    check_equal(both_passes(layer, images, upstream, as_vectors), expected);
  }
}

TEST_CASE("a frozen convolution passes gradients on without taking any itself") {
  const Case c{5, 12, 12, 6, 3, 16};
  for (const Way& way : ways()) {
    INFO(way.name);
    torch::nn::Conv2d layer = make_layer(c, way.type);
    const at::Tensor images = small_integers({c.images, 6, 12, 12}).to(way.type);
    const at::Tensor upstream = make_upstream(c, way.type);
    const at::Tensor expected = both_passes(layer, images, upstream, pool).images;
    layer->zero_grad();
    for (at::Tensor& parameter : layer->parameters()) parameter.set_requires_grad(false);
    CHECK_FALSE(pool(layer, images).requires_grad());
    const at::Tensor leaf = images.clone(kChannelsLast).requires_grad_();
    pool(layer, leaf).backward(upstream);
    CHECK(leaf.grad().equal(expected));
    CHECK_FALSE(layer->weight.grad().defined());
  }
}

TEST_CASE("results in lanes do not depend on the number of threads") {
  torch::manual_seed(6);
  const Case c{70, 12, 12, 6, 3, 16};
  for (const Way& way : ways()) {
    INFO(way.name);
    // The way image by image adds up its sums in an order that depends on the number of threads.
    const bool in_lanes = way.passes == images_in_lanes(way.type);
    const auto values = [&](at::IntArrayRef sizes) {
      return in_lanes ? at::randn(sizes).contiguous(kChannelsLast) : small_integers(sizes);
    };
    torch::nn::Conv2d layer = make_layer(c, way.type);
    const at::Tensor images = values({c.images, 6, 12, 12}).to(way.type);
    const at::Tensor upstream = values({c.images, 16, 5, 5}).to(way.type);
    const int before = at::get_num_threads();
    at::set_num_threads(1);
    const Passes one = both_passes(way, layer, images, upstream, /*planar=*/false);
    at::set_num_threads(3);
    const Passes three = both_passes(way, layer, images, upstream, /*planar=*/false);
    at::set_num_threads(before);
    check_equal(three, one);
  }
}

TEST_CASE("an empty batch has zero gradients in a pooled convolution") {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    torch::nn::Conv2d layer = make_layer({0, 8, 8, 3, 3, 4}, type);
    const at::Tensor out = pool(layer, at::zeros({0, 3, 8, 8}, type));
    CHECK(out.sizes() == at::IntArrayRef({0, 4, 3, 3}));
    out.sum().backward();
    CHECK(layer->weight.grad().abs().sum().item<float>() == 0);
    CHECK(layer->bias.grad().abs().sum().item<float>() == 0);
  }
}

TEST_CASE("gradients are written to their destination buffers") {
  torch::manual_seed(8);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    torch::nn::Conv2d layer = make_layer({10, 12, 12, 6, 3, 16}, type);
    if (!has_host_convolve_relu_max_pool(*layer)) return;  // on processors without the instructions
    const at::Tensor images = at::randn({10, 6, 12, 12}).contiguous(kChannelsLast).to(type);
    const at::Tensor upstream = at::randn({10, 16, 5, 5}).contiguous(kChannelsLast).to(type);
    const at::Tensor weight = at::full_like(layer->weight, 7).detach();
    const at::Tensor bias = at::full_like(layer->bias, 7).detach();
    GradientPlaces places;
    places.set(layer->weight, weight);
    places.set(layer->bias, bias);
    convolve_relu_max_pool(*layer, images, places).backward(upstream);
    CHECK(layer->weight.grad().const_data_ptr() == weight.const_data_ptr());
    CHECK(layer->bias.grad().const_data_ptr() == bias.const_data_ptr());
    const Passes elsewhere = both_passes(layer, images, upstream, pool);
    CHECK(elsewhere.weight.equal(weight));
    CHECK(elsewhere.bias.equal(bias));
  }
}

TEST_CASE("a NaN in an image affects only its windows") {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    torch::nn::Conv2d layer = make_layer({2, 8, 8, 2, 3, 20}, type);
    at::Tensor images = small_integers({2, 2, 8, 8}).to(type);
    images[1][1][0][0] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor out = pool(layer, images);
    CHECK(out[1].select(2, 0).select(1, 0).isnan().all().item<bool>());
    CHECK(out.isnan().sum().item<std::int64_t>() == 20);
  }
}

TEST_CASE("LibTorch computes layers that the kernels do not support") {
  torch::manual_seed(7);
  const at::Tensor images = small_integers({2, 4, 9, 9});
  for (const auto& options :
       {torch::nn::Conv2dOptions(4, 6, 3).padding(1), torch::nn::Conv2dOptions(4, 6, 3).stride(2),
        torch::nn::Conv2dOptions(4, 6, 3).groups(2), torch::nn::Conv2dOptions(4, 6, 3).bias(false),
        torch::nn::Conv2dOptions(4, 6, {3, 2}), torch::nn::Conv2dOptions(4, 6, 3).dilation(2),
        torch::nn::Conv2dOptions(4, 6, 3).padding(torch::kSame)}) {
    torch::nn::Conv2d layer(options);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      layer->to(type);
      const at::Tensor out = pool(layer, images.to(type));
      CHECK(out.equal(relu_max_pool(layer->forward(images.to(type)))));
    }
  }
}

TEST_CASE("LibTorch refuses images that do not fit the layer") {
  torch::nn::Conv2d layer = make_layer({1, 8, 8, 2, 3, 4});
  CHECK_THROWS_AS(pool(layer, at::zeros({1, 3, 8, 8}, at::kBFloat16)), c10::Error);
  CHECK_THROWS_AS(pool(layer, at::zeros({1, 2, 2, 2}, at::kBFloat16)), c10::Error);
}

}  // namespace
}  // namespace mnist_train::models
