#include "models/model.h"

#include <ATen/ops/randn.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/instancenorm.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/error_of.h"

namespace mnist_train::models {
namespace {

using Catch::Matchers::ContainsSubstring;
using settings::ModelName;
using settings::ModelOptions;
using testing::error_of;
using testing::IsError;
using Shapes = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;

constexpr ModelName kModels[] = {ModelName::kNet, ModelName::kMlp, ModelName::kLeNet,
                                 ModelName::kResNet18};

ModelOptions named(ModelName name) {
  ModelOptions options;
  options.name = name;
  return options;
}

void add_convolution(Shapes& parameters, const std::string& name, std::int64_t in, std::int64_t out,
                     std::int64_t kernel) {
  parameters.push_back({name + ".weight", {out, in, kernel, kernel}});
  parameters.push_back({name + ".bias", {out}});
}

void add_batch_norm(Shapes& parameters, Shapes& buffers, const std::string& name,
                    std::int64_t channels) {
  parameters.push_back({name + ".weight", {channels}});
  parameters.push_back({name + ".bias", {channels}});
  buffers.push_back({name + ".running_mean", {channels}});
  buffers.push_back({name + ".running_var", {channels}});
  buffers.push_back({name + ".num_batches_tracked", {}});
}

Shapes resnet18_shapes() {
  Shapes parameters;
  Shapes buffers;
  add_convolution(parameters, "0", 1, 64, 3);
  add_batch_norm(parameters, buffers, "1", 64);
  std::int64_t in = 64;
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t out = std::int64_t{64} << stage;
    for (int number = 0; number < 2; ++number) {
      const std::string block =
          "resnet_block" + std::to_string(stage + 1) + "." + std::to_string(number) + ".";
      add_convolution(parameters, block + "conv1", in, out, 3);
      add_convolution(parameters, block + "conv2", out, out, 3);
      if (stage > 0 && number == 0) add_convolution(parameters, block + "conv3", in, out, 1);
      add_batch_norm(parameters, buffers, block + "bn1", out);
      add_batch_norm(parameters, buffers, block + "bn2", out);
      in = out;
    }
  }
  parameters.push_back({"fc.1.weight", {10, 512}});
  parameters.push_back({"fc.1.bias", {10}});
  parameters.insert(parameters.end(), buffers.begin(), buffers.end());
  return parameters;
}

/// The state_dict that the documentation states for MNIST.
Shapes documented_shapes(ModelName name) {
  switch (name) {
    case ModelName::kNet:
      return {{"conv1.weight", {20, 1, 5, 5}},  {"conv1.bias", {20}},
              {"conv2.weight", {50, 20, 5, 5}}, {"conv2.bias", {50}},
              {"fc1.weight", {500, 800}},       {"fc1.bias", {500}},
              {"fc2.weight", {10, 500}},        {"fc2.bias", {10}}};
    case ModelName::kMlp:
      return {{"fc1.weight", {1024, 784}}, {"fc1.bias", {1024}},       {"fc2.weight", {1024, 1024}},
              {"fc2.bias", {1024}},        {"fc3.weight", {10, 1024}}, {"fc3.bias", {10}}};
    case ModelName::kLeNet:
      return {{"conv1.weight", {6, 1, 5, 5}},  {"conv1.bias", {6}},
              {"conv2.weight", {16, 6, 3, 3}}, {"conv2.bias", {16}},
              {"fc1.weight", {120, 400}},      {"fc1.bias", {120}},
              {"fc2.weight", {84, 120}},       {"fc2.bias", {84}},
              {"fc3.weight", {10, 84}},        {"fc3.bias", {10}}};
    case ModelName::kResNet18:
      return resnet18_shapes();
    default:
      return {};  // published_networks_test.py compares them with their originals
  }
}

Shapes shapes_of(const Model& model) {
  Shapes shapes;
  for (const auto& item : model.named_parameters()) {
    shapes.emplace_back(item.key(), item.value().sizes().vec());
  }
  for (const auto& item : model.named_buffers()) {
    shapes.emplace_back(item.key(), item.value().sizes().vec());
  }
  return shapes;
}

bool same_weights(const Model& a, const Model& b) {
  const auto left = a.parameters();
  const auto right = b.parameters();
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!left[i].equal(right[i])) return false;
  }
  return left.size() == right.size();
}

TEST_CASE("every model has PyTorch's names and shapes") {
  for (const ModelName name : kModels) {
    const auto model = make_model(named(name), {}, 1);
    INFO("model " << static_cast<int>(name));
    REQUIRE_FALSE(documented_shapes(name).empty());
    CHECK(shapes_of(*model) == documented_shapes(name));
  }
}

TEST_CASE("the seed alone decides the initial weights of every model") {
  for (const ModelName name : kModels) {
    const auto model = make_model(named(name), {}, 5);
    (void)at::randn({100});  // whatever was drawn before does not matter
    CHECK(same_weights(*model, *make_model(named(name), {}, 5)));
    CHECK_FALSE(same_weights(*model, *make_model(named(name), {}, 6)));
  }
}

TEST_CASE("every model scores each image once for each class, whatever the data's shape") {
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

TEST_CASE("images that are too small for a model are refused with the least size") {
  CHECK_THAT(error_of([] {
               make_model(named(ModelName::kNet), {1, 28, 15, 10}, 1);
             }),
             IsError(ExitCode::kConfig, "at least 16x16", "28x15"));
  CHECK(make_model(named(ModelName::kNet), {1, 16, 16, 10}, 1) != nullptr);
}

/// A model with these layers below the module "features".
struct ModelWithFeatures : Model {
  explicit ModelWithFeatures(torch::nn::Sequential layers) {
    register_module("features", std::move(layers));
  }
  at::Tensor forward(const at::Tensor& images) override { return images; }
};

TEST_CASE("layers with statistics that cannot be synchronised are refused by their names") {
  const auto sum = [](at::Tensor& /*sums*/) {};
  torch::nn::Sequential layers;
  layers->push_back(std::make_shared<BatchNorm>(3));
  layers->push_back("norm", torch::nn::BatchNorm2d(3));
  layers->push_back(torch::nn::BatchNorm1d(
      torch::nn::BatchNorm1dOptions(4).affine(false).track_running_stats(false)));
  layers->push_back(torch::nn::BatchNorm3d(5));
  layers->push_back(
      torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(3).track_running_stats(true)));
  layers->push_back(torch::nn::InstanceNorm2d(3));  // knows nothing of other samples
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

TEST_CASE(
    "a model with batch norm that can be synchronised says so, one without is used as it is") {
  const auto sum = [](at::Tensor& /*sums*/) {};
  for (const ModelName name : kModels) {
    const auto model = make_model(named(name), {}, 1);
    model->synchronize_batch_norm(sum);
    CHECK(model->synchronizes_batch_norm() == (name == ModelName::kResNet18));
  }
}

TEST_CASE("net begins with the weights that PyTorch draws for the seed") {
  struct Ends {
    const char* name;
    float first;
    float last;
  };
  // torch.manual_seed(1), then the layers in their order, by PyTorch 2.11.
  const std::vector<Ends> expected{{"conv1.weight", 0.103052638F, 0.0749659091F},
                                   {"conv1.bias", -0.158832833F, 0.024972368F},
                                   {"conv2.weight", -0.0442230217F, 0.0417861231F},
                                   {"conv2.bias", -0.0203267466F, -0.0410888344F},
                                   {"fc1.weight", 0.0271595865F, -0.0331883915F},
                                   {"fc1.bias", -0.0210706647F, -0.0246075559F},
                                   {"fc2.weight", 0.0377041362F, -0.0260598194F},
                                   {"fc2.bias", 0.0255128983F, 0.0172052961F}};
  const auto model = make_model(named(ModelName::kNet), {}, 1);
  const auto parameters = model->named_parameters();
  for (const Ends& ends : expected) {
    const at::Tensor values = parameters[ends.name].flatten();
    INFO(ends.name);
    CHECK(values[0].item<float>() == ends.first);
    CHECK(values[-1].item<float>() == ends.last);
  }
}

}  // namespace
}  // namespace mnist_train::models
