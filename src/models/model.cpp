#include "models/model.h"

#include <torch/utils.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace mnist_train::models {

namespace {

bool has_running_statistics(const torch::nn::Module& layer) {
  return layer.named_buffers(/*recurse=*/false).contains("running_mean");
}

/// Returns whether a layer uses statistics of the local batch or running statistics. The type of a
/// TorchScript layer is known only from its name.
bool has_batch_statistics(const torch::nn::Module& layer) {
  return layer.name().find("BatchNorm") != std::string::npos || has_running_statistics(layer);
}

/// Returns whether a layer has running statistics, and parameters that are all frozen.
bool keeps_statistics(const torch::nn::Module& layer) {
  const std::vector<at::Tensor> parameters = layer.parameters(/*recurse=*/false);
  return has_running_statistics(layer) && !parameters.empty() &&
         std::ranges::none_of(parameters, &at::Tensor::requires_grad);
}

}  // namespace

bool is_mask(const at::Tensor& buffer) {
  return buffer.scalar_type() == at::kBool || !at::isfinite(buffer).all().item<bool>();
}

std::set<std::string> Model::frozen_parameters() const {
  std::set<std::string> frozen;
  for (const auto& item : named_parameters()) {
    if (!item.value().requires_grad()) frozen.insert(item.key());
  }
  return frozen;
}

void Model::train(bool on) {
  torch::nn::Module::train(on);
  keep_frozen_statistics();
}

void Model::keep_frozen_statistics() {
  for (const auto& layer : modules(/*include_self=*/false)) {
    if (keeps_statistics(*layer)) layer->eval();
  }
}

void Model::synchronize_batch_norm(const AllReduce& sum) {
  std::string unknown;
  for (const auto& item : named_modules()) {
    if (keeps_statistics(*item.value())) continue;
    if (auto* norm = item.value()->as<BatchNorm>()) {
      norm->synchronize(sum);
      synchronizes_batch_norm_ = true;
    } else if (has_batch_statistics(*item.value())) {
      unknown += "\n  " + item.key() + " (" + item.value()->name() + ")";
    }
  }
  if (unknown.empty()) return;
  throw Error(
      ExitCode::kConfig,
      "sync_batch_norm cannot synchronize these layers; set it to false, or use batch_norm in "
      "model.layers:" +
          unknown);
}

void Model::compute_in_bfloat16() {
  for (const auto& layer : modules()) {
    if (has_running_statistics(*layer)) continue;
    for (at::Tensor& parameter : layer->parameters(/*recurse=*/false)) {
      parameter.set_data(parameter.detach().to(at::kBFloat16));
    }
  }
}

std::shared_ptr<Model> make_model(const settings::ModelOptions& options,
                                  const network::ImageShape& shape, std::int64_t seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  if (options.torchscript) return make_script_model(*options.torchscript, shape);
  if (options.plugin) return make_plugin_model(*options.plugin, options.options, shape);
  return make_layered_model(network::make_network(options, shape), options.init,
                            network::init_defaults(options));
}

}  // namespace mnist_train::models
