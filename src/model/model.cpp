#include "model/model.h"

#include <torch/utils.h>

#include <array>

#include "base/error.h"
#include "model/net.h"

namespace mnist_train::model {

namespace {

constexpr std::array kModels{
    ModelEntry{options::ModelName::kNet, &make_net},
};

}  // namespace

std::span<const ModelEntry> model_table() { return kModels; }

std::shared_ptr<Model> make_model(const options::ModelOptions& options, const ImageShape& shape,
                                  std::int64_t seed) {
  for (const ModelEntry& entry : kModels) {
    if (entry.name != options.name) continue;
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    return entry.make(options, shape);
  }
  throw Error(ExitCode::kConfig, "this model is not built yet");
}

}  // namespace mnist_train::model
