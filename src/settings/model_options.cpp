#include "settings/model_options.h"

#include <utility>

#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

using Options = ModelOptions;

constexpr std::int64_t kMaxLayerSize = 1 << 20;

/// Adds a key that only mlp has: it is refused for other models, and not written for them.
template <class T>
void add_mlp_key(Schema<Options>& schema, const std::string& name, T Options::*member,
                 const Type<T>& type, const std::string& doc) {
  schema.add(name, member, type, doc).write =
      [member, type](const Options& options) -> std::optional<Json> {
    if (options.name != ModelName::kMlp) return std::nullopt;
    return type.write(options.*member);
  };
  schema.forbid(name, all_of({given(name), none_of(equal("name", "mlp"))}),
                "is only for model mlp");
}

/// Returns the type of "default" and of {"name": "normal", "std": 0.1}.
Type<InitOptions> init() {
  const auto name =
      one_of<InitName>({{InitName::kDefault, "default"}, {InitName::kNormal, "normal"}});
  Schema<InitOptions> schema;
  schema.add("name", &InitOptions::name, name, "The distribution.");
  schema.add("std", &InitOptions::std, optional_of(number({0, kMaxFloat, true})),
             "Standard deviation of normal; null: the model's default.");
  schema.forbid("std", all_of({given("std"), none_of(equal("name", "normal"))}),
                "needs \"name\": \"normal\"");
  Type<InitOptions> type;
  type.fragment = {{"anyOf", {name.fragment, schema.describe()}}};
  type.keys = schema.keys();
  type.read = [schema, name](const JsonCursor& cursor) -> std::optional<InitOptions> {
    if (cursor.node().kind == JsonKind::kObject) return schema.read(cursor);
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

}  // namespace

Schema<ModelOptions> model_schema() {
  const auto name = one_of<ModelName>({{ModelName::kNet, "net"},
                                       {ModelName::kMlp, "mlp"},
                                       {ModelName::kLeNet, "lenet"},
                                       {ModelName::kResNet18, "resnet18"}});
  const auto activation = one_of<Activation>({{Activation::kTanh, "tanh"},
                                              {Activation::kRelu, "relu"},
                                              {Activation::kSigmoid, "sigmoid"}});
  Schema<Options> schema;
  schema.add("name", &Options::name, name, "The network.", {"architecture", "arch", "type"});
  schema.add("weights", &Options::weights, optional_of(path()), "A file of weights to start from.",
             {"pretrained", "init_from"});
  add_mlp_key(schema, "hidden", &Options::hidden, list_of(integer(1, kMaxLayerSize)),
              "Sizes of mlp's hidden layers.");
  add_mlp_key(schema, "activation", &Options::activation, activation,
              "The function behind each of mlp's hidden layers.");
  schema.add("init", &Options::init, init(),
             "Initial weights: default (as the model defines them), or {\"name\": \"normal\", "
             "\"std\": 0.1}.",
             {"initializer", "weight_init"});
  return schema;
}

}  // namespace mnist_train::settings
