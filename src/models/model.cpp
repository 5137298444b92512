#include "models/model.h"

#include <torch/utils.h>

#include <array>

#include "base/error.h"
#include "models/lenet.h"
#include "models/mlp.h"
#include "models/net.h"
#include "models/resnet18.h"

namespace mnist_train::models {

namespace {

constexpr std::array kModels{
    ModelEntry{settings::ModelName::kNet, &make_net},
    ModelEntry{settings::ModelName::kMlp, &make_mlp},
    ModelEntry{settings::ModelName::kLeNet, &make_lenet},
    ModelEntry{settings::ModelName::kResNet18, &make_resnet18},
};

}  // namespace

void Model::synchronize_batch_norm(const SumOverRanks& sum) {
  for (const auto& child : modules()) {
    if (auto* norm = child->as<BatchNorm2d>()) {
      norm->synchronize(sum);
      synchronizes_batch_norm_ = true;
    }
  }
}

void Model::compute_in_bfloat16() {
  for (const auto& child : modules()) {
    if (child->as<BatchNorm2d>() != nullptr) continue;
    for (at::Tensor& parameter : child->parameters(/*recurse=*/false)) {
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
    return entry.make(options, shape);
  }
  throw Error(ExitCode::kConfig, "a model without a row in the table of models");
}

}  // namespace mnist_train::models
