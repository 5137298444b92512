#include "settings/model_options.h"

#include <utility>

#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

using Options = ModelOptions;

const std::vector<std::pair<ModelName, std::string>> kNames{{ModelName::kNet, "net"},
                                                            {ModelName::kMlp, "mlp"},
                                                            {ModelName::kLeNet, "lenet"},
                                                            {ModelName::kResNet18, "resnet18"}};

/// Adds a key that is written only for models to which it belongs.
template <class T>
void add_key_of(Schema<Options>& schema, bool (*has_key)(const Options&), const std::string& name,
                T Options::*member, const Type<T>& type, const std::string& doc,
                const std::vector<std::string>& other_names = {}) {
  schema.add(name, member, type, doc, other_names).write =
      [has_key, member, type](const Options& options) -> std::optional<Json> {
    if (!has_key(options)) return std::nullopt;
    return type.write(options.*member);
  };
}

bool is_mlp(const Options& options) { return !options.is_own() && options.name == ModelName::kMlp; }

/// Returns the type of any JSON object, as text.
Type<std::string> json_object() {
  Type<std::string> type;
  type.fragment = {{"type", "object"}};
  type.read = [](const JsonCursor& cursor) -> std::optional<std::string> {
    if (cursor.node().kind == JsonKind::kObject) return to_json(cursor.node()).dump();
    cursor.add_mismatch("an object");
    return std::nullopt;
  };
  type.write = [](const std::string& value) { return Json::parse(value); };
  return type;
}

/// Adds the ways to say which network it is, of which a config takes one.
void add_networks(Schema<Options>& schema) {
  const auto is_named = [](const Options& options) { return !options.is_own(); };
  add_key_of(schema, is_named, "name", &Options::name, one_of<ModelName>(kNames),
             "A built-in network.", {"architecture", "arch", "type"});
  add_key_of(
      schema, [](const Options& options) { return options.layers.has_value(); }, "layers",
      &Options::layers, optional_of(layer_list()),
      "A network of one's own, layer by layer, instead of name: names (\"relu\"), or objects with "
      "a "
      "name and arguments of torch.nn.");
  add_key_of(
      schema, [](const Options& options) { return options.torchscript.has_value(); }, "torchscript",
      &Options::torchscript, optional_of(path()),
      "Instead of name: a file that torch.jit.save wrote. It is a program: trust where it is from.",
      {"script", "jit"});
  add_key_of(
      schema, [](const Options& options) { return options.plugin.has_value(); }, "plugin",
      &Options::plugin, optional_of(path()),
      "Instead of name: a library with a network in C++, built against the package mnist_train.",
      {"library"});
  add_key_of(
      schema, [](const Options& options) { return options.plugin.has_value(); }, "options",
      &Options::options, json_object(), "What the plug-in reads.");
  const std::vector<std::string> keys{"name", "layers", "torchscript", "plugin"};
  for (std::size_t i = 1; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) schema.conflict(keys[i], keys[j]);
  }
  schema.forbid("options", all_of({given("options"), none_of(given("plugin"))}), "needs plugin");
}

}  // namespace

std::string name_of(ModelName name) {
  for (const auto& [value, text] : kNames) {
    if (value == name) return text;
  }
  return "";
}

Schema<ModelOptions> model_schema() {
  Schema<Options> schema;
  add_networks(schema);
  schema.add("weights", &Options::weights, optional_of(path()), "A file of weights to start from.",
             {"pretrained", "init_from"});
  add_key_of(schema, is_mlp, "hidden", &Options::hidden, list_of(integer(1, kMaxLayerSize)),
             "Sizes of mlp's hidden layers.");
  add_key_of(schema, is_mlp, "activation", &Options::activation,
             activation_type({Activation::kTanh, Activation::kRelu, Activation::kSigmoid}),
             "The function behind each of mlp's hidden layers.");
  for (const char* key : {"hidden", "activation"}) {
    schema.forbid(key, all_of({given(key), none_of(equal("name", "mlp"))}),
                  "is only for model mlp");
  }
  schema.add("init", &Options::init, init(),
             "Initial weights: default (as the model defines them), {\"name\": \"normal\", "
             "\"std\": 0.1}, xavier_uniform or kaiming_normal.",
             {"initializer", "weight_init"});
  for (const char* key : {"torchscript", "plugin"}) {
    schema.forbid("init", all_of({given("init"), given(key), none_of(equal("init", "default"))}),
                  std::string("is for layers that the config names; ") + key +
                      " brings its own initial weights");
  }
  return schema;
}

}  // namespace mnist_train::settings
