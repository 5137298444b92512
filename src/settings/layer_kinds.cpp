#include "settings/layer_kinds.h"

#include <array>
#include <utility>
#include <vector>

#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

constexpr std::array kActivations{"tanh", "relu", "sigmoid", "gelu", "silu", "leaky_relu"};

}  // namespace

Type<OutputSize> output_size() { return optional_of(integer(1, kMaxLayerSize), "classes"); }

Type<Padding> padding() {
  const auto sides = height_and_width(0, kMaxImageSide);
  Type<Padding> type = optional_of(sides, "same");
  type.fragment["anyOf"].push_back({{"const", "valid"}});
  type.read = [read = type.read](const JsonCursor& cursor) -> std::optional<Padding> {
    const strict_json::Node& node = cursor.node();
    const bool none = node.kind == JsonKind::kString && node.string == "valid";
    return none ? std::optional(Padding(ImageSize{0, 0})) : read(cursor.or_else("\"valid\""));
  };
  return type;
}

std::string name_of(Activation function) {
  return kActivations[static_cast<std::size_t>(function)];
}

Type<Activation> activation_type(const std::vector<Activation>& functions) {
  std::vector<std::pair<Activation, std::string>> names;
  names.reserve(functions.size());
  for (const Activation function : functions) names.emplace_back(function, name_of(function));
  return one_of<Activation>(names);
}

Type<InitOptions> init() {
  const auto name = one_of<InitName>({{InitName::kDefault, "default"},
                                      {InitName::kNormal, "normal"},
                                      {InitName::kXavierUniform, "xavier_uniform"},
                                      {InitName::kKaimingNormal, "kaiming_normal"}});
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
  type.write = [schema, name](const InitOptions& value) -> Json {
    return value.name == InitName::kNormal ? schema.write(value) : name.write(value.name);
  };
  return type;
}

}  // namespace mnist_train::settings
