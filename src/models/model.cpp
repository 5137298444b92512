#include "models/model.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <array>
#include <string>

#include "base/error.h"

namespace mnist_train::models {

namespace {

using settings::ModelName;

constexpr std::array kModels{
    ModelEntry{ModelName::kNet, &make_net, 0.1, /*draws_biases=*/true, false},
    ModelEntry{ModelName::kMlp, &make_mlp, 0.1, /*draws_biases=*/true, false},
    ModelEntry{ModelName::kLeNet, &make_lenet, 0.1, /*draws_biases=*/true,
               /*xavier_by_default=*/true},
    ModelEntry{ModelName::kResNet18, &make_resnet18, 0.01, /*draws_biases=*/false, false},
};

/// Linear and convolution layers in the order of their registration. Other layers keep PyTorch's
/// initial weights.
void initialize(Model& model, const settings::InitOptions& init, const ModelEntry& entry) {
  const bool normal = init.name == settings::InitName::kNormal;
  if (!normal && !entry.xavier_by_default) return;
  const double std = init.std.value_or(entry.normal_std);
  const auto draw = [&](auto* layer) {
    if (layer == nullptr) return;
    if (normal) {
      torch::nn::init::normal_(layer->weight, 0, std);
      if (entry.draws_biases) torch::nn::init::normal_(layer->bias, 0, std);
    } else {
      torch::nn::init::xavier_uniform_(layer->weight);
      torch::nn::init::zeros_(layer->bias);
    }
  };
  for (const auto& layer : model.modules()) {
    draw(layer->as<torch::nn::Linear>());
    draw(layer->as<torch::nn::Conv2d>());
  }
}

/// Whether statistics of the local batch, or running ones, decide what the layer computes.
bool has_own_statistics(torch::nn::Module& layer) {
  return layer.as<torch::nn::BatchNorm1d>() != nullptr ||
         layer.as<torch::nn::BatchNorm2d>() != nullptr ||
         layer.as<torch::nn::BatchNorm3d>() != nullptr ||
         layer.named_buffers(/*recurse=*/false).contains("running_mean");
}

}  // namespace

void Model::synchronize_batch_norm(const SumOverRanks& sum) {
  std::string unknown;
  for (const auto& item : named_modules()) {
    if (auto* norm = item.value()->as<BatchNorm2d>()) {
      norm->synchronize(sum);
      synchronizes_batch_norm_ = true;
    } else if (has_own_statistics(*item.value())) {
      unknown += "\n  " + item.key() + " (" + item.value()->name() + ")";
    }
  }
  if (unknown.empty()) return;
  throw Error(ExitCode::kConfig,
              "sync_batch_norm cannot synchronize these layers of the model; use "
              "mnist_train::models::BatchNorm2d in their place, or set sync_batch_norm to false:" +
                  unknown);
}

void Model::compute_in_bfloat16() {
  for (const auto& layer : modules()) {
    if (layer->as<BatchNorm2d>() != nullptr) continue;
    for (at::Tensor& parameter : layer->parameters(/*recurse=*/false)) {
      parameter.set_data(parameter.detach().to(at::kBFloat16));
    }
  }
}

std::span<const ModelEntry> model_table() { return kModels; }

std::shared_ptr<Model> make_model(const settings::ModelOptions& options, const ImageShape& shape,
                                  std::int64_t seed) {
  for (const ModelEntry& entry : kModels) {
    if (entry.name != options.name) continue;
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    auto model = entry.make(options, shape);
    initialize(*model, options.init, entry);
    return model;
  }
  throw Error(ExitCode::kConfig, "a model without a row in the table of models");
}

}  // namespace mnist_train::models
