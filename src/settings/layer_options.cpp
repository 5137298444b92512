#include "settings/layer_options.h"

#include <utility>

#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

using LayerRow = Alternative<Layer>;
using Names = std::vector<std::string>;

const std::vector<std::string> kActivations{
    "tanh", "relu", "sigmoid", "gelu", "silu", "leaky_relu", "relu6", "hardswish", "hardsigmoid"};
constexpr const char* kInferred = "input sizes are inferred: remove the key";
constexpr const char* kOneOrTwo = "One number, or [height, width].";

Type<OutputSize> output_size() { return optional_of(integer(1, kMaxLayerSize), "classes"); }

/// Returns the type of a number, [height, width], "same" or "valid".
Type<Padding> padding() {
  Type<Padding> type = optional_of(height_and_width(0, kMaxImageSide), "same");
  type.fragment["anyOf"].push_back({{"const", "valid"}});
  type.read = [read = type.read](const JsonCursor& cursor) -> std::optional<Padding> {
    if (cursor.node().value == "valid") return Padding(ImageSize{0, 0});
    return read(cursor.or_else("\"valid\""));
  };
  return type;
}

Type<std::string> module_name() {
  return strict_json::text("^[A-Za-z0-9_]{1,64}$", "a name of up to 64 letters, digits and _");
}

/// Returns the row of a kind of layer, with these keys after "name" and "as". Keys with defaults
/// are not written, because people read these long lists.
template <class Kind>
LayerRow row(const std::string& name, const Schema<Kind>& keys, const Names& required = {},
             const Kind& kind = {}) {
  Schema<Layer> schema{Layer{"", kind}};
  schema.add_name(name);
  schema
      .add("as", &Layer::as, module_name(), "The module's name; without it, its index in the list.")
      .write = [](const Layer& layer) -> std::optional<Json> {
    if (layer.as.empty()) return std::nullopt;
    return layer.as;
  };
  schema.include(
      [](auto& layer) -> auto& { return std::get<Kind>(layer.kind); }, keys);
  for (const std::string& key : required) schema.require(key);
  schema.omit_defaults();
  LayerRow result{name, std::move(schema),
                  [](const Layer& layer) { return std::holds_alternative<Kind>(layer.kind); }};
  if (required.empty()) result.bare = Layer{"", kind};
  return result;
}

const Type<LayerList>& layer_list_type();

/// Returns the type of lists within layers, which refers to the type of all lists by name.
Type<LayerList> nested_layers() {
  return {[](const JsonCursor& cursor) { return layer_list_type().read(cursor); },
          [](const LayerList& layers) {
            return layers.empty() ? Json::array() : layer_list_type().write(layers);
          },
          {{"$ref", kLayersReference}}};
}

/// Adds the keys of layers with a weight and a bias.
template <class Kind>
void add_weights(Schema<Kind>& keys) {
  keys.add("bias", &Kind::bias, boolean(), "Adds a bias.");
  keys.add("init", &Kind::init, optional_of(init()),
           "Initial weights of this layer; null: model.init.");
}

LayerRow conv2d() {
  using Kind = Conv2dLayer;
  const auto size = height_and_width(1, kMaxImageSide);
  Schema<Kind> keys;
  keys.add("out_channels", &Kind::out_channels, output_size(),
           "Output channels, or \"classes\", the number of classes of the data.",
           {"filters", "channels", "out_features"});
  keys.add("kernel_size", &Kind::kernel_size, size, kOneOrTwo, {"size"});
  keys.add("stride", &Kind::stride, size, kOneOrTwo);
  keys.add("padding", &Kind::padding, padding(),
           "Zeros on every side: one number, [height, width], \"same\" or \"valid\".");
  keys.add("dilation", &Kind::dilation, size, kOneOrTwo);
  keys.add("groups", &Kind::groups, integer(1, kMaxLayerSize),
           "Number of groups of channels that are convolved separately.");
  add_weights(keys);
  keys.explain_absent({{"in_channels", kInferred}});
  return row("conv2d", keys, {"out_channels", "kernel_size"});
}

LayerRow linear() {
  using Kind = LinearLayer;
  Schema<Kind> keys;
  keys.add("out_features", &Kind::out_features, output_size(),
           "Output features, or \"classes\", the number of classes of the data.",
           {"units", "features", "out_channels"});
  add_weights(keys);
  keys.explain_absent({{"in_features", kInferred}});
  return row("linear", keys, {"out_features"});
}

LayerRow batch_norm() {
  using Kind = BatchNormLayer;
  Schema<Kind> keys;
  keys.add("eps", &Kind::eps, number({0, 1, true}), "Added to the variance.", {"epsilon"});
  keys.add("momentum", &Kind::momentum, number({0, 1}),
           "Weight of a batch in the running statistics.");
  keys.explain_absent({{"num_features", kInferred}, {"num_channels", kInferred}});
  return row("batch_norm", keys);
}

LayerRow group_norm() {
  using Kind = GroupNormLayer;
  Schema<Kind> keys;
  keys.add("num_groups", &Kind::num_groups, integer(1, kMaxLayerSize),
           "Number of groups of channels that are normalised separately.", {"groups"});
  keys.add("eps", &Kind::eps, number({0, 1, true}), "Added to the variance.", {"epsilon"});
  keys.explain_absent({{"num_channels", kInferred}, {"num_features", kInferred}});
  return row("group_norm", keys, {"num_groups"});
}

LayerRow activation(Activation function, const Schema<ActivationLayer>& keys = {}) {
  LayerRow result = row<ActivationLayer>(name_of(function), keys, {}, {function});
  result.is_of_kind = [function](const Layer& layer) {
    const auto* kind = std::get_if<ActivationLayer>(&layer.kind);
    return kind != nullptr && kind->function == function;
  };
  return result;
}

LayerRow gelu() {
  Schema<ActivationLayer> keys;
  keys.add("approximate", &ActivationLayer::tanh_approximates, one_of<bool>({"none", "tanh"}),
           "Exact (none) or by tanh.");
  return activation(Activation::kGelu, keys);
}

LayerRow leaky_relu() {
  Schema<ActivationLayer> keys;
  keys.add("negative_slope", &ActivationLayer::negative_slope, number({-kMaxFloat, kMaxFloat}),
           "Slope for negative inputs.", {"alpha", "slope"});
  return activation(Activation::kLeakyRelu, keys);
}

/// Adds the keys of both kinds of pooling.
template <class Kind>
void add_window(Schema<Kind>& keys) {
  const auto size = height_and_width(1, kMaxImageSide);
  keys.add("kernel_size", &Kind::kernel_size, size, kOneOrTwo, {"size"});
  keys.add("stride", &Kind::stride, optional_of(size),
           "One number, or [height, width]; null: the kernel's size.");
  keys.add("padding", &Kind::padding, height_and_width(0, kMaxImageSide),
           "On every side: one number, or [height, width], at most half the kernel.");
  keys.add("ceil_mode", &Kind::ceil_mode, boolean(),
           "Windows may extend beyond the last row and column.");
}

LayerRow max_pool2d() {
  Schema<MaxPool2dLayer> keys;
  add_window(keys);
  keys.add("dilation", &MaxPool2dLayer::dilation, height_and_width(1, kMaxImageSide), kOneOrTwo);
  return row("max_pool2d", keys, {"kernel_size"});
}

LayerRow avg_pool2d() {
  Schema<AvgPool2dLayer> keys;
  add_window(keys);
  keys.add("count_include_pad", &AvgPool2dLayer::count_include_pad, boolean(),
           "Includes the padding in the average.");
  return row("avg_pool2d", keys, {"kernel_size"});
}

LayerRow adaptive_avg_pool2d() {
  using Kind = AdaptiveAvgPool2dLayer;
  Schema<Kind> keys;
  keys.add("output_size", &Kind::output_size, image_size(), kOneOrTwo, {"size"});
  return row("adaptive_avg_pool2d", keys);
}

/// Returns the type of one number for all edges, or [left, right, top, bottom].
Type<Edges> edges() {
  const auto side = integer(0, kMaxImageSide);
  const std::string form = "[left, right, top, bottom]";
  return converted<Edges>(
      one_or_list(side, list_of(side, "one number or " + form, 4, 4), form, 4),
      [](const Sides& read) {
        return Edges{read[0], read[1], read[2], read[3]};
      },
      [](const Edges& edges) {
        return Sides{edges.left, edges.right, edges.top, edges.bottom};
      });
}

LayerRow zero_pad2d() {
  Schema<ZeroPad2dLayer> keys;
  keys.add("padding", &ZeroPad2dLayer::padding, edges(),
           "Zeros at the edges: one number, or [left, right, top, bottom].");
  return row("zero_pad2d", keys, {"padding"});
}

LayerRow dropout() {
  Schema<DropoutLayer> keys;
  keys.add("p", &DropoutLayer::p, number({0, 1, false, true}),
           "Probability that an element is set to 0.", {"probability", "rate"});
  return row("dropout", keys);
}

LayerRow sequential() {
  Schema<SequentialLayer> keys;
  keys.add("layers", &SequentialLayer::layers, nested_layers(), "Consecutive layers.");
  return row("sequential", keys, {"layers"});
}

LayerRow residual() {
  using Kind = ResidualLayer;
  Schema<Kind> keys;
  keys.add("layers", &Kind::layers, nested_layers(), "Consecutive layers.");
  keys.add("shortcut", &Kind::shortcut, nested_layers(),
           "Layers applied to the input before it is added; empty: none.", {"downsample"});
  keys.add("activation", &Kind::activation, optional_of(one_of<Activation>(kActivations)),
           "Applied to the sum.");
  keys.add("modules", &Kind::modules, list_of(module_name()),
           "Names of all layers with weights, in state_dict order; their names there then have no "
           "prefix layers. or shortcut.");
  return row("residual", keys, {"layers"});
}

LayerRow gate() {
  Schema<GateLayer> keys;
  keys.add("layers", &GateLayer::layers, nested_layers(),
           "Consecutive layers, whose output is multiplied by their input, as in "
           "squeeze-and-excitation.");
  return row("gate", keys, {"layers"});
}

LayerRow repeat() {
  Schema<RepeatLayer> keys;
  keys.add("times", &RepeatLayer::times, integer(1, kMaxCount), "Number of repetitions.",
           {"count", "n"});
  keys.add("layers", &RepeatLayer::layers, nested_layers(), "Consecutive layers.");
  return row("repeat", keys, {"times", "layers"});
}

std::vector<LayerRow> layer_table() {
  return {conv2d(),
          linear(),
          batch_norm(),
          group_norm(),
          activation(Activation::kRelu),
          gelu(),
          activation(Activation::kSilu),
          activation(Activation::kTanh),
          activation(Activation::kSigmoid),
          leaky_relu(),
          activation(Activation::kRelu6),
          activation(Activation::kHardswish),
          activation(Activation::kHardsigmoid),
          max_pool2d(),
          avg_pool2d(),
          adaptive_avg_pool2d(),
          zero_pad2d(),
          row<FlattenLayer>("flatten", {}),
          dropout(),
          sequential(),
          residual(),
          gate(),
          repeat()};
}

/// Returns the type of all lists of layers.
const Type<LayerList>& layer_list_type() {
  static const Type<LayerList> kType = [] {
    Type<Layer> layer = named_union(layer_table(), {{"batch_norm2d", "batch_norm"},
                                                    {"BatchNorm2d", "batch_norm"},
                                                    {"BatchNorm1d", "batch_norm"},
                                                    {"dense", "linear"},
                                                    {"conv", "conv2d"},
                                                    {"swish", "silu"},
                                                    {"global_avg_pool", "adaptive_avg_pool2d"}});
    layer.write = [write = layer.write](const Layer& value) {
      const Json entry = write(value);
      return entry.size() == 1 ? entry["name"] : entry;  // a bare name
    };
    return list_of(layer);
  }();
  return kType;
}

}  // namespace

std::string name_of(Activation function) {
  return kActivations[static_cast<std::size_t>(function)];
}

Type<ImageSize> image_size() { return height_and_width(1, kMaxImageSide); }

Type<ImageSize> height_and_width(std::int64_t min, std::int64_t max) {
  const auto side = integer(min, max);
  const std::string form = "[height, width]";
  return converted<ImageSize>(
      one_or_list(side, list_of(side, "one number or " + form, 2, 2), form, 2),
      [](const Sides& read) {
        return ImageSize{read.front(), read.back()};
      },
      sides);
}

Type<InitOptions> init() {
  const auto name = one_of<InitName>({"default", "normal", "xavier_uniform", "kaiming_normal"});
  Schema<InitOptions> schema;
  schema.add("name", &InitOptions::name, name, "The distribution.");
  schema.add("std", &InitOptions::std, optional_of(number({0, kMaxFloat, true})),
             "Standard deviation of normal; null: the model's default.");
  schema.forbid("std", all_of({given("std"), none_of(equal("name", "normal"))}),
                "needs \"name\": \"normal\"");
  const auto brief = converted<InitOptions>(
      name,
      [](InitName value) {
        return InitOptions{value, std::nullopt};
      },
      [](const InitOptions& value) { return value.name; });
  return brief_or_full(brief, group(std::move(schema)), "{\"name\", \"std\"}",
                       [](const InitOptions& value) { return value.name != InitName::kNormal; });
}

std::string name_of(const LayerKind& kind) {
  const Json entry = layer_list_type().write({Layer{"", kind}}).front();
  return entry.is_string() ? entry : entry["name"];
}

std::string write_layers(const LayerList& layers) { return layer_list_type().write(layers).dump(); }

Json layer_list_schema() { return layer_list_type().fragment; }

Type<LayerList> layer_list() { return nested_layers(); }

}  // namespace mnist_train::settings
