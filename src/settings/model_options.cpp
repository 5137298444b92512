#include "settings/model_options.h"

#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

const std::vector<std::string> kModelNames{"net",
                                           "mlp",
                                           "lenet",
                                           "resnet18",
                                           "torchvision-resnet18",
                                           "torchvision-resnet34",
                                           "torchvision-resnet50",
                                           "torchvision-mobilenet_v2",
                                           "efficientnet-lite0"};

/// Adds a key that is written only for models that have it.
template <class T>
KnownKey& add_model_key(Schema<ModelOptions>& schema, bool (*has_key)(const ModelOptions&),
                        const std::string& name, T ModelOptions::*member, const Type<T>& type,
                        const std::string& doc, const std::vector<std::string>& other_names = {}) {
  auto& field = schema.add(name, member, type, doc, other_names);
  field.write = [has_key, member, type](const ModelOptions& options) -> std::optional<Json> {
    if (!has_key(options)) return std::nullopt;
    return type.write(options.*member);
  };
  return field.key;
}

/// Returns the type of any JSON object, as text.
Type<std::string> json_object() {
  return {.read = [](const JsonCursor& cursor) -> std::optional<std::string> {
            if (cursor.node().value.is_object()) return strict_json::to_json(cursor.node()).dump();
            cursor.add_mismatch("an object");
            return std::nullopt;
          },
          .write = [](const std::string& value) { return Json::parse(value); },
          .fragment = {{"type", "object"}}};
}

/// Adds the alternative ways to name a network. A config takes one of them; one that is given in a
/// later layer drops the others, and keys that belong to them.
void add_networks(Schema<ModelOptions>& schema) {
  const auto is_named = [](const ModelOptions& options) { return !options.is_own(); };
  add_model_key(
      schema, is_named, "name", &ModelOptions::name, one_of<ModelName>(kModelNames),
      "A built-in network. torchvision-… and efficientnet-lite0 have the names and numbers "
      "of their originals, so weights published for these load strictly.",
      {"architecture", "arch", "type"})
      .drops = {"layers", "torchscript", "plugin", "options"};
  add_model_key(
      schema, [](const ModelOptions& options) { return options.layers.has_value(); }, "layers",
      &ModelOptions::layers, optional_of(layer_list()),
      "Instead of name: a custom network, layer by layer: names (\"relu\"), or objects with a name "
      "and the arguments of torch.nn.")
      .drops = {"name", "torchscript", "plugin", "options", "hidden", "activation"};
  add_model_key(
      schema, [](const ModelOptions& options) { return options.torchscript.has_value(); },
      "torchscript", &ModelOptions::torchscript, optional_of(path()),
      "Instead of name: a file written by torch.jit.save. It is a program: use trusted files only.",
      {"script", "jit"})
      .drops = {"name", "layers", "plugin", "options", "hidden", "activation"};
  add_model_key(
      schema, [](const ModelOptions& options) { return options.plugin.has_value(); }, "plugin",
      &ModelOptions::plugin, optional_of(path()),
      "Instead of name: a library with a network in C++, built against the package mnist_train.",
      {"library"})
      .drops = {"name", "layers", "torchscript", "hidden", "activation"};
  add_model_key(
      schema, [](const ModelOptions& options) { return options.plugin.has_value(); }, "options",
      &ModelOptions::options, json_object(), "Options for the plug-in.");
  const std::vector<std::string> keys{"name", "layers", "torchscript", "plugin"};
  for (std::size_t i = 1; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) schema.conflict(keys[i], keys[j]);
  }
  schema.forbid("options", all_of({given("options"), none_of(given("plugin"))}), "needs plugin");
}

/// Returns the type of `weights`: a file, or {"file", "new"}.
Type<WeightsOptions> weights() {
  const auto glob = strict_json::text("^.+$", "\"head\" or a glob of names such as \"fc.*\"");
  const auto globs = one_or_list(glob, list_of(glob), "a list of globs");
  Schema<WeightsOptions> schema;
  schema
      .add("file", &WeightsOptions::file, path(),
           "The file: .pt, .pth, .safetensors, a checkpoint or a run folder.", {"path"}, kNever)
      .required = true;
  schema.add("new", &WeightsOptions::fresh, globs,
             "What keeps its fresh initialisation: \"head\" (the last layer), or globs of names of "
             "tensors; * crosses dots.",
             {"exclude", "skip", "ignore"}, kNever);
  return brief_or_full(
      converted<WeightsOptions>(
          path(), [](std::filesystem::path file) { return WeightsOptions{std::move(file)}; },
          [](const WeightsOptions& options) { return options.file; }),
      group(std::move(schema)), R"({"file": "resnet18.pth", "new": "head"})",
      [](const WeightsOptions& options) { return options.fresh.empty(); });
}

}  // namespace

std::string name_of(ModelName name) { return kModelNames.at(static_cast<std::size_t>(name)); }

std::vector<ModelName> all_models() {
  std::vector<ModelName> all;
  for (std::size_t i = 0; i < kModelNames.size(); ++i) all.push_back(static_cast<ModelName>(i));
  return all;
}

std::optional<NormalizeOptions> published_normalize(const ModelOptions& options) {
  // Of ImageNet, for all of them.
  if (options.is_own() || options.name < ModelName::kTorchvisionResNet18) return std::nullopt;
  return NormalizeOptions{std::vector{0.485, 0.456, 0.406}, std::vector{0.229, 0.224, 0.225}};
}

Schema<ModelOptions> model_schema() {
  Schema<ModelOptions> schema;
  add_networks(schema);
  schema
      .add("weights", &ModelOptions::weights, optional_of(weights()),
           "A file with the initial weights; with new, for another number of classes.",
           {"pretrained", "init_from"}, kNever)
      .key.shorthand_for = "file";
  const strict_json::KeyOwner mlp{"name", "mlp"};
  schema
      .add("hidden", &ModelOptions::hidden, list_of(integer(1, kMaxLayerSize)),
           "Sizes of mlp's hidden layers.")
      .key.owner = mlp;
  schema
      .add("activation", &ModelOptions::activation, one_of<Activation>({"tanh", "relu", "sigmoid"}),
           "Activation after each hidden layer of mlp.")
      .key.owner = mlp;
  for (const char* key : {"hidden", "activation"}) {
    schema.forbid(key, all_of({given(key), none_of(equal("name", "mlp"))}),
                  "is only for model mlp");
  }
  schema
      .add("init", &ModelOptions::init, init(),
           "Initial weights: default (those of the model), {\"name\": \"normal\", \"std\": 0.1}, "
           "xavier_uniform or kaiming_normal.",
           {"initializer", "weight_init"})
      .key.shorthand_for = "name";
  for (const char* key : {"torchscript", "plugin"}) {
    schema.forbid(
        "init", all_of({given("init"), given(key), none_of(equal("init", "default"))}),
        std::string("is for layers in the config; ") + key + " brings its own initial weights");
  }
  return schema;
}

}  // namespace mnist_train::settings
