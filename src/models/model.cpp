#include "models/model.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/utils.h>

#include <string>

#include "base/error.h"

namespace mnist_train::models {

namespace {

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
    if (auto* norm = item.value()->as<BatchNorm>()) {
      norm->synchronize(sum);
      synchronizes_batch_norm_ = true;
    } else if (has_own_statistics(*item.value())) {
      unknown += "\n  " + item.key() + " (" + item.value()->name() + ")";
    }
  }
  if (unknown.empty()) return;
  throw Error(ExitCode::kConfig,
              "sync_batch_norm cannot synchronize these layers of the model; use "
              "mnist_train::models::BatchNorm in their place, or set sync_batch_norm to false:" +
                  unknown);
}

void Model::compute_in_bfloat16() {
  for (const auto& layer : modules()) {
    if (layer->as<BatchNorm>() != nullptr) continue;
    for (at::Tensor& parameter : layer->parameters(/*recurse=*/false)) {
      parameter.set_data(parameter.detach().to(at::kBFloat16));
    }
  }
}

std::shared_ptr<Model> make_model(const settings::ModelOptions& options,
                                  const network::ImageShape& shape, std::int64_t seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return make_layered_model(network::make_network(options, shape), options.init,
                            network::init_defaults(options));
}

}  // namespace mnist_train::models
