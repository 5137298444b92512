#include "options/model_options.h"

#include <utility>

#include "config/schema.h"
#include "config/schema_rule.h"
#include "options/limits.h"

namespace mnist_train::options {

namespace {

using config::Json;
using config::Place;
using config::Schema;
using Options = ModelOptions;

constexpr std::int64_t kMaxLayerSize = 1 << 20;

/// A key that only one model has: refused beside others, and written for that one alone.
template <class T>
config::Field<Options> key_of(ModelName owner, std::string name, T Options::*member,
                              config::Type<T> type, std::string doc) {
  return {name,
          std::move(doc),
          type.fragment,
          [member, type](Options& options, const Place& place) {
            if (std::optional<T> value = type.read(place)) options.*member = std::move(*value);
          },
          [owner, member, type](const Options& options) -> std::optional<Json> {
            if (options.name != owner) return std::nullopt;
            return type.write(options.*member);
          },
          {},
          type.keys};
}

/// "default", or {"name": "normal", "std": 0.1}.
config::Type<InitOptions> init() {
  const auto name =
      config::one_of<InitName>({{InitName::kDefault, "default"}, {InitName::kNormal, "normal"}});
  Schema<InitOptions> schema;
  schema.add("name", &InitOptions::name, name, "The distribution.");
  schema.add("std", &InitOptions::std, config::optional_of(config::number({0, kMaxFloat, true})),
             "Standard deviation of normal; null: the model's own.");
  schema.check([](InitOptions& options, const Place& place) {
    if (place.gives("std") && options.name != InitName::kNormal) {
      place.complain_about("std", "needs \"name\": \"normal\" beside it");
    }
  });
  config::Type<InitOptions> type;
  type.fragment = {{"anyOf", {name.fragment, schema.describe()}}};
  type.keys = schema.keys();
  type.read = [schema, name](const Place& place) -> std::optional<InitOptions> {
    if (place.node().kind == config::Node::Kind::kObject) return schema.read(place);
    const auto chosen = name.read(place.or_else("{\"name\", \"std\"}"));
    if (!chosen) return std::nullopt;
    return InitOptions{*chosen, std::nullopt};
  };
  type.write = [schema](const InitOptions& value) -> Json {
    if (value.name == InitName::kDefault) return "default";
    return schema.write(value);
  };
  return type;
}

void check_model(Options& options, const Place& place) {
  for (const char* key : {"hidden", "activation"}) {
    if (place.gives(key) && options.name != ModelName::kMlp) {
      place.complain_about(key, "belongs to model mlp alone");
    }
  }
}

}  // namespace

config::Schema<ModelOptions> model_schema() {
  const auto name = config::one_of<ModelName>({{ModelName::kNet, "net"},
                                               {ModelName::kMlp, "mlp"},
                                               {ModelName::kLeNet, "lenet"},
                                               {ModelName::kResNet18, "resnet18"}});
  const auto activation = config::one_of<Activation>({{Activation::kTanh, "tanh"},
                                                      {Activation::kRelu, "relu"},
                                                      {Activation::kSigmoid, "sigmoid"}});
  Schema<Options> schema;
  schema.add("name", &Options::name, name, "The network.", {"architecture", "arch", "type"});
  schema.add("weights", &Options::weights, config::optional_of(config::path()),
             "A file of weights to start from.", {"pretrained", "init_from"});
  schema.add(key_of(ModelName::kMlp, "hidden", &Options::hidden,
                    config::list_of(config::integer(1, kMaxLayerSize)),
                    "Sizes of mlp's hidden layers."));
  schema.add(key_of(ModelName::kMlp, "activation", &Options::activation, activation,
                    "What follows each of mlp's hidden layers."));
  schema.add("init", &Options::init, init(),
             "Initial weights: default (the model's own), or {\"name\": \"normal\", \"std\": 0.1}.",
             {"initializer", "weight_init"});
  schema.check(check_model);
  schema.describe_rule(config::when(
      config::none_of(config::equal("name", "mlp")),
      config::all_of({config::has("hidden", false), config::has("activation", false)})));
  return schema;
}

}  // namespace mnist_train::options
