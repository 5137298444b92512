#include "options/model_options.h"

#include "config/not_built.h"
#include "config/schema.h"

namespace mnist_train::options {

config::Schema<ModelOptions> model_schema() {
  const auto name = config::one_of<ModelName>({{ModelName::kNet, "net"},
                                               {ModelName::kMlp, "mlp"},
                                               {ModelName::kLeNet, "lenet"},
                                               {ModelName::kResNet18, "resnet18"}});
  constexpr bool kIsWritten = false;  // net, the only model so far, has no such parameters
  config::Schema<ModelOptions> schema;
  schema.add("name", &ModelOptions::name, config::built_so_far(name, {ModelName::kNet}),
             "The network.", {"architecture", "arch", "type"});
  schema.add("weights", &ModelOptions::weights, config::optional_of(config::path()),
             "A file of weights to start from.", {"pretrained", "init_from"});
  schema.add(config::not_built<ModelOptions>(
      "hidden", nullptr,
      {{"type", {"array", "null"}}, {"items", {{"type", "integer"}, {"minimum", 1}}}},
      "Sizes of mlp's hidden layers.", kIsWritten));
  schema.add(config::not_built<ModelOptions>("activation", nullptr, {{"type", {"string", "null"}}},
                                             "What follows mlp's hidden layers, such as tanh.",
                                             kIsWritten));
  schema.add(config::not_built<ModelOptions>(
      "init", "default", {{"type", {"string", "object", "null"}}},
      "Initial weights: default, or {\"name\": \"normal\", \"std\": 0.1}.", kIsWritten));
  return schema;
}

}  // namespace mnist_train::options
