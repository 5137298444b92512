#include "models/model.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/instancenorm.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/layer_operations.h"
#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::models {
namespace {

using Catch::Matchers::ContainsSubstring;
using settings::ModelName;
using settings::ModelOptions;
using testing::error_of;
using testing::IsError;

constexpr ModelName kModels[] = {ModelName::kNet, ModelName::kMlp, ModelName::kLeNet,
                                 ModelName::kResNet18};

ModelOptions named(ModelName name) {
  ModelOptions options;
  options.name = name;
  return options;
}

bool same_weights(const Model& a, const Model& b) {
  const auto left = a.parameters();
  const auto right = b.parameters();
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!left[i].equal(right[i])) return false;
  }
  return left.size() == right.size();
}

TEST_CASE("the initial weights of every model depend only on the seed") {
  for (const ModelName name : kModels) {
    const auto model = make_model(named(name), {}, 5);
    (void)at::randn({100});  // advances the global generator
    CHECK(same_weights(*model, *make_model(named(name), {}, 5)));
    CHECK_FALSE(same_weights(*model, *make_model(named(name), {}, 6)));
  }
}

TEST_CASE("every model returns one logit per image and class for any image shape") {
  const c10::InferenceMode inference;
  for (const ModelName name : kModels) {
    for (const network::ImageShape& shape :
         {network::ImageShape{}, network::ImageShape{3, 32, 32, 26},
          network::ImageShape{1, 30, 41, 2}}) {
      const auto model = make_model(named(name), shape, 1);
      for (const std::int64_t count : {1, 5}) {
        const at::Tensor images = at::randn({count, shape.channels, shape.height, shape.width});
        const at::Tensor logits = model->forward(images);
        CHECK(logits.sizes().vec() == std::vector<std::int64_t>{count, shape.classes});
        CHECK(logits.isfinite().all().item<bool>());
      }
    }
  }
}

TEST_CASE("images too small for a model are refused, and the error names the layer") {
  CHECK_THAT(error_of([] {
               make_model(named(ModelName::kNet), {1, 28, 15, 10}, 1);
             }),
             IsError(ExitCode::kConfig, "images of 28x15", "does not fit into [N,50,8,1]"));
  CHECK(make_model(named(ModelName::kNet), {1, 16, 16, 10}, 1) != nullptr);
}

/// A model with `layers` as its module "features".
struct ModelWithFeatures : Model {
  explicit ModelWithFeatures(torch::nn::Sequential layers) {
    register_module("features", std::move(layers));
  }
  at::Tensor forward(const at::Tensor& images) override { return images; }
};

TEST_CASE("layers whose statistics cannot be synchronised are refused, and the error names them") {
  const auto sum = [](at::Tensor& /*sums*/) {};
  torch::nn::Sequential layers;
  layers->push_back(std::make_shared<BatchNorm>(3));
  layers->push_back("norm", torch::nn::BatchNorm2d(3));
  layers->push_back(torch::nn::BatchNorm1d(
      torch::nn::BatchNorm1dOptions(4).affine(false).track_running_stats(false)));
  layers->push_back(torch::nn::BatchNorm3d(5));
  layers->push_back(
      torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(3).track_running_stats(true)));
  layers->push_back(torch::nn::InstanceNorm2d(3));  // statistics per sample
  const auto model = std::make_shared<ModelWithFeatures>(layers);
  const auto failure = error_of([&] { model->synchronize_batch_norm(sum); });
  CHECK(failure.code == ExitCode::kConfig);
  for (const char* part : {"batch_norm in model.layers", "set it to false",
                           "\n  features.norm (torch::nn::BatchNorm2dImpl)",
                           "\n  features.2 (torch::nn::BatchNorm1dImpl)",
                           "\n  features.3 (torch::nn::BatchNorm3dImpl)", "\n  features.4 ("}) {
    CHECK_THAT(failure.message, ContainsSubstring(part));
  }
  CHECK_THAT(failure.message, !ContainsSubstring("features.0"));
  CHECK_THAT(failure.message, !ContainsSubstring("features.5"));
}

TEST_CASE("synchronizes_batch_norm is true only for models with batch norm") {
  const auto sum = [](at::Tensor& /*sums*/) {};
  for (const ModelName name : kModels) {
    const auto model = make_model(named(name), {}, 1);
    model->synchronize_batch_norm(sum);
    CHECK(model->synchronizes_batch_norm() == (name == ModelName::kResNet18));
  }
}

/// LibTorch computes some of these with uninitialised memory or crashes; see layer_operations.cpp.
TEST_CASE("convolutions that LibTorch computes wrongly match those in fp64") {
  using Pair = torch::ExpandingArray<2>;
  struct Row {
    std::int64_t channels, height, width;
    Pair kernel, stride, padding, dilation;
    std::int64_t groups = 1;
  };
  const Row rows[] = {{16, 1, 1, {3, 3}, {2, 2}, {1, 1}, {1, 1}},
                      {16, 5, 1, {2, 3}, {3, 3}, {1, 2}, {1, 1}},
                      {16, 4, 3, {2, 2}, {1, 4}, {0, 1}, {2, 1}},
                      {1, 3, 1, {3, 2}, {1, 4}, {2, 1}, {1, 1}},
                      {1, 9, 1, {2, 5}, {1, 2}, {1, 2}, {2, 1}},
                      {2, 3, 1, {5, 5}, {3, 2}, {3, 3}, {2, 1}},
                      {3, 5, 1, {3, 7}, {3, 2}, {0, 4}, {2, 1}},
                      {1, 5, 1, {3, 1}, {2, 3}, {2, 2}, {1, 2}},
                      {3, 6, 5, {3, 3}, {2, 1}, {1, 1}, {1, 1}},
                      {8, 6, 26, {1, 1}, {2, 2}, {0, 0}, {1, 1}},
                      {16, 32, 32, {3, 3}, {1, 1}, {2, 2}, {2, 2}, 4},
                      {8, 9, 40, {3, 3}, {1, 1}, {1, 2}, {1, 2}, 8}};
  torch::manual_seed(3);
  for (const auto& [channels, height, width, kernel, stride, padding, dilation, groups] : rows) {
    torch::nn::Conv2d layer(torch::nn::Conv2dOptions(channels, 8, kernel)
                                .stride(stride)
                                .padding(padding)
                                .dilation(dilation)
                                .groups(groups));
    for (int i = 0; i < 6; ++i) {
      const auto type = i % 2 == 0 ? at::kFloat : at::kBFloat16;
      layer->to(type);
      layer->zero_grad();
      for (at::Tensor& parameter : layer->parameters()) {
        if (parameter.dim() == 4) {
          parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
        }
      }
      for (const std::int64_t size : {100, 10'000, 100'000}) (void)at::full({size}, 1e30F);
      const at::Tensor images = at::randn({32, channels, height, width})
                                    .to(type)
                                    .contiguous(at::MemoryFormat::ChannelsLast);
      const at::Tensor y = convolve(*layer, images);
      y.sum().backward();
      const at::Tensor weight =
          layer->weight.detach().to(at::kDouble).contiguous().requires_grad_();
      const at::Tensor expected =
          at::conv2d(images.to(at::kDouble).contiguous(), weight,
                     layer->bias.detach().to(at::kDouble), *stride, *padding, *dilation, groups);
      expected.sum().backward();
      CAPTURE(channels, height, width, i);
      const double tolerance = type == at::kFloat ? 1e-5 : 0.02;
      CHECK((y - expected).abs().max().item<double>() <= tolerance * 10);
      const at::Tensor error = (layer->weight.grad() - weight.grad()).abs().max();
      CHECK(error.item<double>() <= tolerance * (1 + weight.grad().abs().max().item<double>()));
    }
  }
}

}  // namespace
}  // namespace mnist_train::models
