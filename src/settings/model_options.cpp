#include "settings/model_options.h"

#include <utility>

#include "settings/limits.h"
#include "strict_json/schema.h"
#include "strict_json/schema_rule.h"

namespace mnist_train::settings {

namespace {

using strict_json::Json;
using strict_json::JsonCursor;
using strict_json::Schema;
using Options = ModelOptions;

constexpr std::int64_t kMaxLayerSize = 1 << 20;

/// A key that only one model has: refused beside others, and written for that one alone.
template <class T>
strict_json::Field<Options> key_of(ModelName owner, std::string name, T Options::*member,
                                   strict_json::Type<T> type, std::string doc) {
  return {name,
          std::move(doc),
          type.fragment,
          [member, type](Options& options, const JsonCursor& cursor) {
            if (std::optional<T> value = type.read(cursor)) options.*member = std::move(*value);
          },
          [owner, member, type](const Options& options) -> std::optional<Json> {
            if (options.name != owner) return std::nullopt;
            return type.write(options.*member);
          },
          {},
          type.keys};
}

/// "default", or {"name": "normal", "std": 0.1}.
strict_json::Type<InitOptions> init() {
  const auto name = strict_json::one_of<InitName>(
      {{InitName::kDefault, "default"}, {InitName::kNormal, "normal"}});
  Schema<InitOptions> schema;
  schema.add("name", &InitOptions::name, name, "The distribution.");
  schema.add("std", &InitOptions::std,
             strict_json::optional_of(strict_json::number({0, kMaxFloat, true})),
             "Standard deviation of normal; null: the model's own.");
  schema.check([](InitOptions& options, const JsonCursor& cursor) {
    if (cursor.gives("std") && options.name != InitName::kNormal) {
      cursor.complain_about("std", "needs \"name\": \"normal\" beside it");
    }
  });
  strict_json::Type<InitOptions> type;
  type.fragment = {{"anyOf", {name.fragment, schema.describe()}}};
  type.keys = schema.keys();
  type.read = [schema, name](const JsonCursor& cursor) -> std::optional<InitOptions> {
    if (cursor.node().kind == strict_json::Node::Kind::kObject) return schema.read(cursor);
    const auto chosen = name.read(cursor.or_else("{\"name\", \"std\"}"));
    if (!chosen) return std::nullopt;
    return InitOptions{*chosen, std::nullopt};
  };
  type.write = [schema](const InitOptions& value) -> Json {
    if (value.name == InitName::kDefault) return "default";
    return schema.write(value);
  };
  return type;
}

void check_model(Options& options, const JsonCursor& cursor) {
  for (const char* key : {"hidden", "activation"}) {
    if (cursor.gives(key) && options.name != ModelName::kMlp) {
      cursor.complain_about(key, "belongs to model mlp alone");
    }
  }
}

}  // namespace

strict_json::Schema<ModelOptions> model_schema() {
  const auto name = strict_json::one_of<ModelName>({{ModelName::kNet, "net"},
                                                    {ModelName::kMlp, "mlp"},
                                                    {ModelName::kLeNet, "lenet"},
                                                    {ModelName::kResNet18, "resnet18"}});
  const auto activation = strict_json::one_of<Activation>({{Activation::kTanh, "tanh"},
                                                           {Activation::kRelu, "relu"},
                                                           {Activation::kSigmoid, "sigmoid"}});
  Schema<Options> schema;
  schema.add("name", &Options::name, name, "The network.", {"architecture", "arch", "type"});
  schema.add("weights", &Options::weights, strict_json::optional_of(strict_json::path()),
             "A file of weights to start from.", {"pretrained", "init_from"});
  schema.add(key_of(ModelName::kMlp, "hidden", &Options::hidden,
                    strict_json::list_of(strict_json::integer(1, kMaxLayerSize)),
                    "Sizes of mlp's hidden layers."));
  schema.add(key_of(ModelName::kMlp, "activation", &Options::activation, activation,
                    "What follows each of mlp's hidden layers."));
  schema.add("init", &Options::init, init(),
             "Initial weights: default (the model's own), or {\"name\": \"normal\", \"std\": 0.1}.",
             {"initializer", "weight_init"});
  schema.check(check_model);
  schema.describe_rule(
      strict_json::when(strict_json::none_of(strict_json::equal("name", "mlp")),
                        strict_json::all_of({strict_json::has("hidden", false),
                                             strict_json::has("activation", false)})));
  return schema;
}

}  // namespace mnist_train::settings
