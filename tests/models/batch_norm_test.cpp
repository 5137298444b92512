#include "models/batch_norm.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/emulated_kernels.h"
#include "models/model.h"
#include "support/catch.h"
#include "support/count_operations.h"
#include "support/layers.h"

namespace mnist_train::models {
namespace {

using settings::Activation;

constexpr std::int64_t kChannels = 3;

/// A layer's results for a batch: outputs, gradients of inputs and weight, and running statistics.
struct Outcome {
  at::Tensor output;
  at::Tensor input_gradient;
  at::Tensor weight_gradient;
  at::Tensor running_mean;
  at::Tensor running_var;
};

template <class Layer>
Outcome run(Layer& layer, const at::Tensor& images, const at::Tensor& slope) {
  const at::Tensor x = images.clone().set_requires_grad(true);
  const at::Tensor y = layer.forward(x);
  (y * slope).sum().backward();
  const auto parameters = layer.named_parameters();
  const auto buffers = layer.named_buffers();
  return {y.detach(), x.grad(), parameters["weight"].grad(), buffers["running_mean"].clone(),
          buffers["running_var"].clone()};
}

double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found - expected).norm() / expected.norm()).item<double>();
}

TEST_CASE("batch norm on one process matches PyTorch in fp64, in training and evaluation") {
  // Many pixels, of which half are equal, as after a ReLU, so that a running fp32 sum loses digits.
  const bool many = GENERATE(false, true);
  const at::Tensor images =
      many ? (at::randn({128, kChannels, 28, 28}).clamp_min(0) + 3)
                 .contiguous(at::MemoryFormat::ChannelsLast)
           : at::randn({6, kChannels, 4, 5}) * 2 + at::randn({1, kChannels, 1, 1});
  const at::Tensor slope = at::randn_like(images);
  BatchNorm ours(kChannels);
  torch::nn::BatchNorm2dImpl exact{torch::nn::BatchNorm2dOptions(kChannels)};
  exact.to(at::kDouble);
  const Outcome a = run(ours, images, slope);
  const Outcome b = run(exact, images.to(at::kDouble), slope.to(at::kDouble));
  CHECK(relative_error(a.output, b.output) < 1e-6);
  CHECK(relative_error(a.input_gradient, b.input_gradient) < 1e-6);
  CHECK(relative_error(a.weight_gradient, b.weight_gradient) < 1e-5);
  CHECK(relative_error(a.running_mean, b.running_mean) < 1e-6);
  CHECK(relative_error(a.running_var, b.running_var) < 1e-6);
  CHECK(ours.named_buffers()["num_batches_tracked"].item<std::int64_t>() == 1);
  ours.eval();
  exact.eval();
  CHECK(relative_error(ours.forward(images), exact.forward(images.to(at::kDouble))) < 1e-6);
  CHECK(ours.named_buffers()["num_batches_tracked"].item<std::int64_t>() == 1);
}

constexpr std::int64_t kBatchNorms = 6;
constexpr std::size_t kConvolutions = 5;

/// Batch norm before a ReLU and before other layers, and at the ends of residual blocks.
settings::ModelOptions batch_norm_options(std::optional<Activation> after_sums, bool bias) {
  using namespace testing::layer;
  const auto convolved = [&](std::int64_t channels) {
    return convolution(channels, 3, /*padding=*/1, /*stride=*/1, bias);
  };
  const settings::Layer norm = batch_norm();
  const settings::ResidualLayer block{
      {convolved(8), norm, relu(), convolved(8), sequential({norm})}, {}, after_sums, {}};
  const settings::ResidualLayer shortcut_block{
      {convolved(12), norm}, {convolved(12), norm}, after_sums, {}};
  settings::ModelOptions options;
  options.layers = {convolved(8), norm,   relu(),     {"", block}, {"", shortcut_block},
                    norm,         relu(), max_pool(), flatten(),   linear(10)};
  return options;
}

/// Returns a copy with channels_last strides, even with one channel, as in training.
at::Tensor to_channels_last(const at::Tensor& images) {
  const std::int64_t channels = images.size(1);
  const std::int64_t width = images.size(3);
  return at::empty_strided(images.sizes(),
                           {images.size(2) * width * channels, 1, width * channels, channels},
                           images.options())
      .copy_(images);
}

std::shared_ptr<Model> build_model(const settings::ModelOptions& options, std::int64_t channels) {
  auto model = make_model(options, {channels, 12, 12, 10}, /*seed=*/3);
  for (at::Tensor& parameter : model->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(to_channels_last(parameter.detach()));
  }
  return model;
}

/// The results of a training step.
struct FusedOutcome {
  at::Tensor scores;
  std::map<std::string, at::Tensor> tensors;  // scores, gradients and buffers
  std::set<std::string> biases;               // names of convolution biases
};

FusedOutcome train_once(Model& model, const at::Tensor& images) {
  FusedOutcome outcome;
  outcome.scores = model.forward(images);
  torch::manual_seed(6);
  (outcome.scores * at::randn(outcome.scores.sizes())).sum().backward();
  outcome.tensors["scores"] = outcome.scores.detach();
  for (const auto& parameter : model.named_parameters()) {
    outcome.tensors[parameter.key()] = parameter->grad();
  }
  for (const auto& buffer : model.named_buffers()) outcome.tensors[buffer.key()] = *buffer;
  for (const auto& layer : model.named_modules()) {
    const auto* convolution = layer->get()->as<torch::nn::Conv2dImpl>();
    if (convolution == nullptr || !convolution->options.bias()) continue;
    outcome.biases.insert(layer.key() + ".bias");
  }
  return outcome;
}

FusedOutcome train_once(const settings::ModelOptions& options, at::ScalarType type,
                        std::int64_t channels = 3) {
  const auto model = build_model(options, channels);
  if (type == at::kBFloat16) model->compute_in_bfloat16();
  torch::manual_seed(5);
  return train_once(*model, to_channels_last(at::randn({16, channels, 12, 12}).to(type)));
}

}  // namespace

TEST_CASE("batch norm in a list of layers is accurate if the mean is far from zero") {
  torch::manual_seed(3);
  settings::ModelOptions options;
  options.layers = {testing::layer::convolution(12, 1), testing::layer::batch_norm(),
                    testing::layer::flatten(), testing::layer::linear(5)};
  const auto model = make_model(options, {3, 12, 11, 5}, /*seed=*/3);
  const auto exact = make_model(options, {3, 12, 11, 5}, /*seed=*/3);
  exact->to(at::kDouble);
  const at::Tensor x = at::randn({64, 3, 12, 11}) + 100;
  CHECK(relative_error(model->forward(x), exact->forward(x.to(at::kDouble))) < 1e-4);
  CHECK(relative_error(model->named_buffers()["1.running_var"],
                       exact->named_buffers()["1.running_var"]) < 1e-4);
}

TEST_CASE("networks with batch norm and residual blocks train the same with and without kernels") {
  using Tail = std::optional<Activation>;
  const Tail after_sums = GENERATE(Tail(Activation::kRelu), Tail(), Tail(Activation::kTanh));
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  const bool bias = GENERATE(false, true);
  const settings::ModelOptions options = batch_norm_options(after_sums, bias);
  const FusedOutcome expected = train_once(options, type);
  CHECK(count_operations(expected.scores, "FusedBatchNorm") == 0);
  FusedOutcome found;
  {
    const EmulatedKernels emulated;
    found = train_once(options, type);
  }
  CHECK(count_operations(found.scores, "FusedBatchNorm") == kBatchNorms);
  CHECK(count_operations(found.scores, "ReluBackward") == 0);
  CHECK(count_operations(found.scores, "AddBackward") == (after_sums == Activation::kTanh ? 2 : 0));
  CHECK(found.biases.size() == (bias ? kConvolutions : 0));
  REQUIRE(found.tensors.size() == expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    CAPTURE(name, after_sums.has_value(), type, bias);
    const at::Tensor reference = tensor.to(at::kDouble);
    if (found.biases.contains(name)) {
      // The exact gradient is 0; LibTorch's is a sum of rounding errors.
      CHECK(found.tensors[name].eq(0).all().item<bool>());
      CHECK(found.tensors[name].scalar_type() == type);
      CHECK(reference.abs().max().item<double>() > 0);
      CHECK(reference.norm().item<double>() < (type == at::kFloat ? 1e-4 : 2));
      continue;
    }
    const double error = (found.tensors[name].to(at::kDouble) - reference).norm().item<double>();
    // Gradients that a batch norm cancels consist of rounding errors.
    CHECK(error <= (type == at::kFloat ? 1e-4 : 0.3) * (reference.norm().item<double>() + 0.1));
  }
}

TEST_CASE("a convolution of one-channel images leaves its bias to the batch norm kernels") {
  const settings::ModelOptions options = batch_norm_options(Activation::kRelu, /*bias=*/true);
  const FusedOutcome expected = train_once(options, at::kFloat, /*channels=*/1);
  const EmulatedKernels emulated;
  FusedOutcome found = train_once(options, at::kFloat, /*channels=*/1);
  CHECK(count_operations(found.scores, "FusedBatchNorm") == kBatchNorms);
  REQUIRE(found.biases.contains("0.bias"));
  for (const auto& name : found.biases) CHECK(found.tensors[name].eq(0).all().item<bool>());
  CHECK(found.tensors["scores"].allclose(expected.tensors.at("scores"), 1e-4, 1e-4));
}

TEST_CASE("a convolution adds its bias if no batch norm kernel does") {
  const settings::ModelOptions options = batch_norm_options(Activation::kTanh, /*bias=*/true);
  const bool trains = GENERATE(true, false);
  const auto model = build_model(options, 3);
  torch::manual_seed(5);
  const at::Tensor images = to_channels_last(at::randn({16, 3, 12, 12}));
  if (trains) {
    model->synchronize_batch_norm([](at::Tensor& /*sums*/) {});
  } else {
    model->eval();
  }
  const at::Tensor expected = model->forward(images).detach();
  const EmulatedKernels emulated;
  const at::Tensor found = model->forward(images);
  CHECK(found.allclose(expected, 1e-4, 1e-5));
  CHECK(count_operations(found, "FusedBatchNorm") == 0);
}

TEST_CASE("the convolution adds its bias to a batch that the batch norm kernels do not support") {
  torch::manual_seed(5);
  torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(3, 4, 1));
  const at::Tensor one_row = at::randn({1, 3, 1, 1});
  const auto train = [&] {
    BatchNorm norm(4);
    norm.forward_fused(convolution.get(), one_row, /*residual=*/{}, /*relu=*/false);
    return norm.named_buffers()["running_mean"];
  };
  const at::Tensor expected = train();
  const EmulatedKernels emulated;
  CHECK(train().allclose(expected));
}
}  // namespace mnist_train::models
