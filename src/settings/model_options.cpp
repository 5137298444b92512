#include "settings/model_options.h"

#include <utility>

#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

using LayerRow = Alternative<Layer>;

const std::vector<std::string> kActivations{
    "tanh", "relu", "sigmoid", "gelu", "silu", "leaky_relu", "relu6", "hardswish", "hardsigmoid"};
constexpr const char* kOneOrTwo = "One number, or [height, width].";

/// Returns the type of two numbers from `min` to `max`: [height, width], or one number for both.
Type<ImageSize> height_and_width(std::int64_t min, std::int64_t max) {
  const auto side = integer(min, max);
  const std::string form = "[height, width]";
  return converted<ImageSize>(
      one_or_list(side, list_of(side, "one number or " + form, 2, 2), form, 2),
      [](const Sides& read) { return ImageSize(read.front(), read.back()); }, sides);
}

/// Returns the type of weight initialisations: a name, or {"name": "normal", "std": 0.1}.
Type<InitOptions> init() {
  const auto name = one_of<InitName>({"default", "normal", "xavier_uniform", "kaiming_normal"});
  Schema<InitOptions> schema;
  ADD_KEY(schema, name, name, "The distribution.");
  ADD_KEY(schema, std, optional_of(number({0, kMaxFloat, true})),
          "Standard deviation of normal; null: 0.01 for resnet18, otherwise 0.1.");
  schema.forbid("std", {given("std"), none_of(equal("name", "normal"))},
                "needs \"name\": \"normal\"");
  const auto brief = converted<InitOptions>(
      name, [](InitName value) { return InitOptions{value}; },
      [](const InitOptions& value) { return value.name; });
  return brief_or_full(brief, group(std::move(schema)), "{\"name\", \"std\"}",
                       [](const InitOptions& value) { return value.name != InitName::kNormal; });
}

const Type<LayerList>& layer_list_type();

/// Returns the type of layer lists; its JSON Schema is a reference to `layer_list_schema`. The
/// network rejects empty lists, except for the shortcut of a residual block.
Type<LayerList> layer_list(int min = 1) {
  return {[](const JsonCursor& cursor) { return layer_list_type().read(cursor); },
          [](const LayerList& layers) {
            return layers.empty() ? Json::array() : layer_list_type().write(layers);
          },
          {{"$ref", kLayersReference}, {"minItems", min}}};
}

Type<OutputSize> output_size() { return optional_of(integer(1, kMaxLayerSize), "classes"); }

/// Returns the type of a number, [height, width], "same" or "valid".
Type<Padding> padding() {
  Type<Padding> type = optional_of(height_and_width(0, kMaxImageSide), "same");
  type.fragment["anyOf"].push_back({{"const", "valid"}});
  type.read = [read = type.read](const JsonCursor& cursor) -> std::optional<Padding> {
    if (cursor.value() == "valid") return Padding(ImageSize{0, 0});
    return read(cursor.or_else("\"valid\""));
  };
  return type;
}

/// Names of attributes that a torch.nn.Sequential or a class of the exported Python module has, and
/// Python's keywords, which torch.jit.load does not accept as names.
constexpr const char* kTakenNames =
    "__.*|_.*(?:_hooks?|_hooks_.*|call_impl|_state_dict|_by_idx|_name|_forward|_parallel|_set)|"
    "_(?:activation|apply|buffers|layers|modules|named_members|parameters|shortcut|version)|"
    "(?:add|register)_module|register_(?:buffer|parameter|.*_hook)|(?:load_)?state_dict|"
    "(?:get|set)_(?:extra_state|submodule)|get_(?:buffer|parameter)|dump_patches|call_super_init|"
    "(?:named_)?(?:buffers|children|modules|parameters)|share_memory|requires_grad_|zero_grad|"
    "extra_repr|T_destination|append|apply|bfloat16|compile|cpu|cuda|double|eval|extend|float|"
    "forward|half|insert|ipu|mtia|pop|to|to_empty|train|training|type|xpu|False|None|True|and|as|"
    "assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|"
    "import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield";

Type<std::string> module_name() {
  return text(std::string("^(?!(?:") + kTakenNames + ")$)[A-Za-z0-9_]{1,64}$",
              "a name of up to 64 letters, digits and _ that is no Python keyword or attribute of "
              "torch.nn.Module");
}

/// Returns the table row of a layer type, with these keys after "name" and "as". Default values are
/// not written, to keep layer lists readable.
template <class Kind>
LayerRow row(const std::string& name, const Schema<Kind>& keys, const Kind& kind = {}) {
  Schema<Layer> schema(Layer{"", kind}, /*omits_defaults=*/true);
  schema.add_name(name);
  ADD_KEY(schema, as, module_name(), "The module's name; without it, its index in the list.");
  schema.write_only_if([](const Layer& layer) { return !layer.as.empty(); });
  schema.include(
      [](auto& layer) -> auto& { return std::get<Kind>(layer.kind); }, keys);
  return {name, std::move(schema),
          [](const Layer& layer) { return std::holds_alternative<Kind>(layer.kind); }};
}

/// Adds the keys of layers with weights and biases.
template <class Kind>
void add_weights(Schema<Kind>& keys) {
  ADD_KEY(keys, bias, boolean(), "Adds a bias.");
  ADD_KEY(keys, init, optional_of(init()), "Initial weights of this layer; null: model.init.");
}

LayerRow conv2d() {
  const auto size = height_and_width(1, kMaxImageSide);
  Schema<Conv2dLayer> keys;
  ADD_KEY(keys, out_channels, output_size(),
          "Output channels, or \"classes\", the number of classes of the data.", kRequired);
  ADD_KEY(keys, kernel_size, size, kOneOrTwo, kRequired);
  ADD_KEY(keys, stride, size, kOneOrTwo);
  ADD_KEY(keys, padding, padding(),
          "Zeros on every side: one number, [height, width], \"same\" or \"valid\".");
  ADD_KEY(keys, dilation, size, kOneOrTwo);
  ADD_KEY(keys, groups, integer(1, kMaxLayerSize),
          "Number of groups of channels that are convolved separately.");
  add_weights(keys);
  return row("conv2d", keys);
}

LayerRow linear() {
  Schema<LinearLayer> keys;
  ADD_KEY(keys, out_features, output_size(),
          "Output features, or \"classes\", the number of classes of the data.", kRequired);
  add_weights(keys);
  return row("linear", keys);
}

LayerRow batch_norm() {
  Schema<BatchNormLayer> keys;
  ADD_KEY(keys, eps, number({0, 1, true}), "Added to the variance.");
  ADD_KEY(keys, momentum, number({0, 1}), "Weight of a batch in the running statistics.");
  return row("batch_norm", keys);
}

LayerRow group_norm() {
  Schema<GroupNormLayer> keys;
  ADD_KEY(keys, num_groups, integer(1, kMaxLayerSize),
          "Number of groups of channels that are normalised separately.", kRequired);
  ADD_KEY(keys, eps, number({0, 1, true}), "Added to the variance.");
  return row("group_norm", keys);
}

LayerRow activation(Activation function, const Schema<ActivationLayer>& keys = {}) {
  LayerRow result = row<ActivationLayer>(name_of(function), keys, {function});
  result.is_of_kind = [function](const Layer& layer) {
    const auto* kind = std::get_if<ActivationLayer>(&layer.kind);
    return kind != nullptr && kind->function == function;
  };
  return result;
}

/// Adds the keys shared by both kinds of pooling.
template <class Kind>
void add_window(Schema<Kind>& keys) {
  const auto size = height_and_width(1, kMaxImageSide);
  ADD_KEY(keys, kernel_size, size, kOneOrTwo, kRequired);
  ADD_KEY(keys, stride, optional_of(size),
          "One number, or [height, width]; null: the kernel's size.");
  ADD_KEY(keys, padding, height_and_width(0, kMaxImageSide),
          "On every side: one number, or [height, width], at most half the kernel.");
  ADD_KEY(keys, ceil_mode, boolean(), "Windows may extend beyond the last row and column.");
}

LayerRow max_pool2d() {
  Schema<MaxPool2dLayer> keys;
  add_window(keys);
  ADD_KEY(keys, dilation, height_and_width(1, kMaxImageSide), kOneOrTwo);
  return row("max_pool2d", keys);
}

LayerRow avg_pool2d() {
  Schema<AvgPool2dLayer> keys;
  add_window(keys);
  ADD_KEY(keys, count_include_pad, boolean(), "Includes the padding in the average.");
  return row("avg_pool2d", keys);
}

/// Returns the type of one number for all edges, or [left, right, top, bottom].
Type<Edges> edges() {
  const auto side = integer(0, kMaxImageSide);
  const std::string form = "[left, right, top, bottom]";
  return converted<Edges>(
      one_or_list(side, list_of(side, "one number or " + form, 4, 4), form, 4),
      [](const Sides& read) { return Edges(read[0], read[1], read[2], read[3]); },
      [](const Edges& edges) {
        return Sides{edges.left, edges.right, edges.top, edges.bottom};
      });
}

LayerRow residual() {
  Schema<ResidualLayer> keys;
  ADD_KEY(keys, layers, layer_list(), "Consecutive layers.", kRequired);
  ADD_KEY(keys, shortcut, layer_list(0),
          "Layers applied to the input before it is added; empty: none.");
  ADD_KEY(keys, activation, optional_of(one_of<Activation>(kActivations)), "Applied to the sum.");
  ADD_KEY(keys, modules, list_of(module_name()),
          "Names of all layers with weights, in state_dict order; the state_dict then omits the "
          "prefixes \"layers.\" and \"shortcut.\".");
  return row("residual", keys);
}

LayerRow repeat() {
  Schema<RepeatLayer> keys;
  ADD_KEY(keys, times, integer(1, kMaxCount), "Number of repetitions.", kRequired);
  ADD_KEY(keys, layers, layer_list(), "Consecutive layers.", kRequired);
  return row("repeat", keys);
}

std::vector<LayerRow> layer_table() {
  return {conv2d(),
          linear(),
          batch_norm(),
          group_norm(),
          activation(Activation::kRelu),
          activation(Activation::kGelu,
                     one_key("approximate", &ActivationLayer::tanh_approximates,
                             one_of<bool>({"none", "tanh"}), "none: exact; tanh: approximated.")),
          activation(Activation::kSilu),
          activation(Activation::kTanh),
          activation(Activation::kSigmoid),
          activation(Activation::kLeakyRelu,
                     one_key("negative_slope", &ActivationLayer::negative_slope,
                             number({-kMaxFloat, kMaxFloat}), "Slope for negative inputs.")),
          activation(Activation::kRelu6),
          activation(Activation::kHardswish),
          activation(Activation::kHardsigmoid),
          max_pool2d(),
          avg_pool2d(),
          row("adaptive_avg_pool2d", one_key("output_size", &AdaptiveAvgPool2dLayer::output_size,
                                             image_size(), kOneOrTwo)),
          row("zero_pad2d",
              one_key("padding", &ZeroPad2dLayer::padding, edges(),
                      "Zeros at the edges: one number, or [left, right, top, bottom].", kRequired)),
          row("flatten", Schema<FlattenLayer>()),
          row("dropout", one_key("p", &DropoutLayer::p, number({0, 1, false, true}),
                                 "Probability that an element is set to 0.")),
          row("sequential", one_key("layers", &SequentialLayer::layers, layer_list(),
                                    "Consecutive layers.", kRequired)),
          residual(),
          row("gate", one_key("layers", &GateLayer::layers, layer_list(),
                              "Consecutive layers, whose output is multiplied by their input, as "
                              "in squeeze-and-excitation.",
                              kRequired)),
          repeat()};
}

/// Returns the full type of layer lists, which `layer_list` refers to.
const Type<LayerList>& layer_list_type() {
  static const Type<LayerList> kType = [] {
    Type<Layer> layer = named_union(layer_table());
    layer.write = [write = layer.write](const Layer& value) {
      const Json entry = write(value);
      return entry.size() == 1 ? entry["name"] : entry;  // a bare name
    };
    return list_of(layer);
  }();
  return kType;
}

const std::vector<std::string> kModelNames{"net", "mlp", "lenet", "resnet18",
                                           // Networks with published weights.
                                           "torchvision-resnet18", "torchvision-resnet34",
                                           "torchvision-resnet50", "torchvision-mobilenet_v2",
                                           "efficientnet-lite0"};

/// Returns the type of any JSON object, as text.
Type<std::string> json_object() {
  return {.read = [](const JsonCursor& cursor) -> std::optional<std::string> {
            if (cursor.value().is_object()) return to_json(cursor.node()).dump();
            return cursor.add_mismatch("an object");
          },
          .write = [](const std::string& value) { return Json::parse(value); },
          .fragment = {{"type", "object"}}};
}

/// Adds the alternative ways to specify a network. A config uses one of them. If a config layer
/// sets one, the others and their keys are dropped from lower layers.
void add_networks(Schema<ModelOptions>& schema) {
  ADD_KEY(schema, name, one_of<ModelName>(kModelNames),
          "A built-in network. torchvision-… and efficientnet-lite0 have the parameters of their "
          "originals, so published weights load strictly.",
          {.drops = {"layers", "torchscript", "plugin", "options"}});
  schema.write_only_if([](const ModelOptions& options) { return !options.is_custom(); });
  ADD_KEY(schema, layers, optional_of(layer_list()),
          "Instead of name: a custom network as a list of layers, each a name (\"relu\") or an "
          "object with a name and the arguments of the torch.nn module.",
          {.drops = {"name", "torchscript", "plugin", "options", "hidden", "activation"}});
  schema.write_only_if([](const ModelOptions& options) { return options.layers.has_value(); });
  ADD_KEY(schema, torchscript, optional_of(path()),
          "Instead of name: a file written by torch.jit.save. It is a program: use trusted files "
          "only.",
          {.drops = {"name", "layers", "plugin", "options", "hidden", "activation"}});
  schema.write_only_if([](const ModelOptions& options) { return options.torchscript.has_value(); });
  const auto has_plugin = [](const ModelOptions& options) { return options.plugin.has_value(); };
  ADD_KEY(
      schema, plugin, optional_of(path()),
      "Instead of name: a library with a network in C++, built against the package mnist_train.",
      {.drops = {"name", "layers", "torchscript", "hidden", "activation"}});
  schema.write_only_if(has_plugin);
  ADD_KEY(schema, options, json_object(), "Options for the plug-in.");
  schema.write_only_if(has_plugin);
  const std::vector<std::string> keys{"name", "layers", "torchscript", "plugin"};
  for (std::size_t i = 1; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) schema.conflict(keys[i], keys[j]);
  }
  schema.forbid("options", {given("options"), none_of(given("plugin"))}, "needs plugin");
}

/// Returns the type of `weights`: a file, or {"file", "new"}.
Type<WeightsOptions> weights() {
  const auto glob = text("^.+$", "\"head\" or a glob of names such as \"fc.*\"");
  const auto globs = one_or_list(glob, list_of(glob), "a list of globs");
  Schema<WeightsOptions> schema;
  ADD_KEY(schema, file, kNever, path(),
          "The file: .pt, .pth, .safetensors, a checkpoint or a run folder.", kRequired);
  schema.add("new", &WeightsOptions::fresh, kNever, globs,
             "Tensors that keep their fresh initialisation: \"head\" (the last layer), or globs of "
             "their names, in which * also matches dots.");
  return brief_or_full(
      converted<WeightsOptions>(
          path(), [](std::filesystem::path file) { return WeightsOptions{std::move(file)}; },
          [](const WeightsOptions& options) { return options.file; }),
      group(std::move(schema)), R"({"file": "resnet18.pth", "new": "head"})",
      [](const WeightsOptions& options) { return options.fresh.empty(); });
}

}  // namespace

std::string name_of(Activation function) {
  return kActivations[static_cast<std::size_t>(function)];
}

Type<ImageSize> image_size() { return height_and_width(1, kMaxImageSide); }

std::string name_of(const LayerKind& kind) {
  const Json entry = layer_list_type().write({Layer{"", kind}}).front();
  return entry.is_string() ? entry : entry["name"];
}

std::string write_layers(const LayerList& layers) { return layer_list_type().write(layers).dump(); }

Json layer_list_schema() { return layer_list_type().fragment; }

std::string name_of(ModelName name) { return kModelNames.at(static_cast<std::size_t>(name)); }

std::vector<ModelName> all_models() {
  std::vector<ModelName> all;
  for (std::size_t i = 0; i < kModelNames.size(); ++i) all.push_back(static_cast<ModelName>(i));
  return all;
}

std::optional<NormalizeOptions> published_normalize(const ModelOptions& options) {
  if (options.is_custom() || options.name < ModelName::kTorchvisionResNet18) return std::nullopt;
  return imagenet_normalize();  // of all published weights
}

Schema<ModelOptions> model_schema() {
  Schema<ModelOptions> schema;
  add_networks(schema);
  ADD_KEY(
      schema, weights, kNever, optional_of(weights()),
      "A file with the initial weights; set new if they are for a different number of classes.");
  const KeyTraits mlp_only{.owner = {"name", "mlp", /*is_any_other=*/false, "model"}};
  ADD_KEY(schema, hidden, list_of(integer(1, kMaxLayerSize)), "Sizes of mlp's hidden layers.",
          mlp_only);
  ADD_KEY(schema, activation, one_of<Activation>({"tanh", "relu", "sigmoid"}),
          "Activation after each hidden layer of mlp.", mlp_only);
  ADD_KEY(schema, init, init(),
          "Initial weights: default (those of the model), {\"name\": \"normal\", \"std\": 0.1}, "
          "xavier_uniform or kaiming_normal.");
  for (const char* key : {"torchscript", "plugin"}) {
    schema.forbid(
        "init", {given("init"), given(key), none_of(equal("init", "default"))},
        std::string("is for networks made of layers; ") + key + " has its own initial weights");
  }
  return schema;
}

}  // namespace mnist_train::settings
