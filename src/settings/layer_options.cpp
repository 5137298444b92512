#include "settings/layer_options.h"

#include <utility>

#include "settings/schemas.h"
#include "strict_json/named_union.h"

namespace mnist_train::settings {

bool SequentialLayer::operator==(const SequentialLayer&) const = default;
bool ResidualLayer::operator==(const ResidualLayer&) const = default;
bool RepeatLayer::operator==(const RepeatLayer&) const = default;
bool Layer::operator==(const Layer&) const = default;

namespace {

using Row = strict_json::Alternative<Layer>;
using Names = std::vector<std::string>;

constexpr const char* kInferred = "what a layer takes in is inferred: remove the key";

Type<std::string> module_name() {
  return strict_json::text("^[A-Za-z0-9_]{1,64}$", "a name of up to 64 letters, digits and _");
}

/// A layer as the table of its keys sees it.
template <class Kind>
struct Entry {
  std::string as;
  Kind kind;
};

/// Leaves out keys with their default values, because lists of layers are long and read by people.
Json without_defaults(Json entry, const Json& defaults) {
  for (const auto& [key, value] : defaults.items()) {
    if (key != "name" && entry.contains(key) && entry[key] == value) entry.erase(key);
  }
  return entry.size() == 1 ? entry["name"] : entry;
}

/// Returns the row of a kind of layer with these keys behind "name" and "as".
template <class Kind>
Row row(const std::string& name, const Schema<Kind>& keys, const Names& required = {}) {
  Schema<Entry<Kind>> schema;
  schema
      .add("as", &Entry<Kind>::as, module_name(),
           "The module's name; without it, its index in the list.")
      .write = [](const Entry<Kind>& entry) -> std::optional<Json> {
    if (entry.as.empty()) return std::nullopt;
    return entry.as;
  };
  schema.include(&Entry<Kind>::kind, keys);
  Row result = strict_json::alternative<Layer, Entry<Kind>>(
      name, schema, required,
      [](Entry<Kind> entry) {
        return Layer{std::move(entry.as), std::move(entry.kind)};
      },
      [](const Layer& layer) -> std::optional<Entry<Kind>> {
        const Kind* kind = std::get_if<Kind>(&layer.kind);
        if (kind == nullptr) return std::nullopt;
        return Entry<Kind>{layer.as, *kind};
      });
  Json defaults = keys.write(Kind{});
  for (const std::string& key : required) defaults.erase(key);
  result.write = [write = result.write, defaults](const Layer& layer) -> std::optional<Json> {
    std::optional<Json> entry = write(layer);
    if (entry) entry = without_defaults(std::move(*entry), defaults);
    return entry;
  };
  if (required.empty()) result.bare = Layer{"", Kind{}};
  return result;
}

const Type<LayerList>& layer_list_type();

/// Returns the type of lists for the tables of which it is itself made.
Type<LayerList> nested_layers() {
  return {[](const JsonCursor& cursor) { return layer_list_type().read(cursor); },
          [](const LayerList& layers) {
            return layers.empty() ? Json::array() : layer_list_type().write(layers);
          },
          {{"$ref", kLayersReference}}};
}

/// Adds the keys that layers with a weight and a bias have.
template <class Kind>
void add_weights(Schema<Kind>& keys) {
  keys.add("bias", &Kind::bias, boolean(), "Whether a bias is added.");
  keys.add("init", &Kind::init, optional_of(init()),
           "Initial weights of this layer; null: those of model.init.");
}

Row conv2d() {
  using Kind = Conv2dLayer;
  const auto size = height_and_width(1, kMaxImageSide);
  Schema<Kind> keys;
  keys.add("out_channels", &Kind::out_channels, output_size(),
           "Output channels, or \"classes\": as many as the data has classes.",
           {"filters", "channels", "out_features"});
  keys.add("kernel_size", &Kind::kernel_size, size, "One number, or [height, width].",
           {"kernel", "size"});
  keys.add("stride", &Kind::stride, size, "One number, or [height, width].", {"strides"});
  keys.add("padding", &Kind::padding, padding(),
           "Zeros on every side: one number, [height, width], \"same\" or \"valid\".", {"pad"});
  keys.add("dilation", &Kind::dilation, size, "One number, or [height, width].");
  keys.add("groups", &Kind::groups, integer(1, kMaxLayerSize),
           "How many groups of channels are convolved by themselves.");
  add_weights(keys);
  keys.explain_absent({{"in_channels", kInferred}});
  return row("conv2d", keys, {"out_channels", "kernel_size"});
}

Row linear() {
  using Kind = LinearLayer;
  Schema<Kind> keys;
  keys.add("out_features", &Kind::out_features, output_size(),
           "Output features, or \"classes\": as many as the data has classes.",
           {"units", "features", "out_channels"});
  add_weights(keys);
  keys.explain_absent({{"in_features", kInferred}});
  return row("linear", keys, {"out_features"});
}

Row batch_norm() {
  using Kind = BatchNormLayer;
  Schema<Kind> keys;
  keys.add("eps", &Kind::eps, number({0, 1, true}), "Added to the variance.", {"epsilon"});
  keys.add("momentum", &Kind::momentum, number({0, 1}),
           "The weight of a batch in the running statistics.");
  keys.explain_absent({{"num_features", kInferred}, {"num_channels", kInferred}});
  return row("batch_norm", keys);
}

Row group_norm() {
  using Kind = GroupNormLayer;
  Schema<Kind> keys;
  keys.add("num_groups", &Kind::num_groups, integer(1, kMaxLayerSize),
           "How many groups of channels are normalised by themselves.", {"groups"});
  keys.add("eps", &Kind::eps, number({0, 1, true}), "Added to the variance.", {"epsilon"});
  keys.explain_absent({{"num_channels", kInferred}, {"num_features", kInferred}});
  return row("group_norm", keys, {"num_groups"});
}

Row activation(Activation function, const Schema<ActivationLayer>& keys = {}) {
  Row result = row<ActivationLayer>(name_of(function), keys);
  result.bare = Layer{"", ActivationLayer{function}};
  result.read = [read = result.read, function](const JsonCursor& cursor) {
    std::optional<Layer> layer = read(cursor);
    if (layer) std::get<ActivationLayer>(layer->kind).function = function;
    return layer;
  };
  result.write = [write = result.write, function](const Layer& layer) -> std::optional<Json> {
    const auto* kind = std::get_if<ActivationLayer>(&layer.kind);
    if (kind == nullptr || kind->function != function) return std::nullopt;
    return write(layer);
  };
  return result;
}

Row gelu() {
  Schema<ActivationLayer> keys;
  keys.add("approximate", &ActivationLayer::tanh_approximates,
           one_of<bool>({{false, "none"}, {true, "tanh"}}), "How it is computed.");
  return activation(Activation::kGelu, keys);
}

Row leaky_relu() {
  Schema<ActivationLayer> keys;
  keys.add("negative_slope", &ActivationLayer::negative_slope, number({-kMaxFloat, kMaxFloat}),
           "The slope below 0.", {"alpha", "slope"});
  return activation(Activation::kLeakyRelu, keys);
}

/// Adds the keys that both kinds of pooling have.
template <class Kind>
void add_window(Schema<Kind>& keys) {
  const auto size = height_and_width(1, kMaxImageSide);
  keys.add("kernel_size", &Kind::kernel_size, size, "One number, or [height, width].",
           {"kernel", "size"});
  keys.add("stride", &Kind::stride, optional_of(size),
           "One number, or [height, width]; null: the kernel's size.", {"strides"});
  keys.add("padding", &Kind::padding, height_and_width(0, kMaxImageSide),
           "On every side: one number, or [height, width], at most half of the kernel.", {"pad"});
  keys.add("ceil_mode", &Kind::ceil_mode, boolean(),
           "Whether windows may reach beyond the last row and column.");
}

Row max_pool2d() {
  Schema<MaxPool2dLayer> keys;
  add_window(keys);
  keys.add("dilation", &MaxPool2dLayer::dilation, height_and_width(1, kMaxImageSide),
           "One number, or [height, width].");
  return row("max_pool2d", keys, {"kernel_size"});
}

Row avg_pool2d() {
  Schema<AvgPool2dLayer> keys;
  add_window(keys);
  keys.add("count_include_pad", &AvgPool2dLayer::count_include_pad, boolean(),
           "Whether padding counts in the average.");
  return row("avg_pool2d", keys, {"kernel_size"});
}

Row adaptive_avg_pool2d() {
  using Kind = AdaptiveAvgPool2dLayer;
  Schema<Kind> keys;
  keys.add("output_size", &Kind::output_size, image_size(), "One number, or [height, width].",
           {"size"});
  return row("adaptive_avg_pool2d", keys);
}

Row dropout() {
  Schema<DropoutLayer> keys;
  keys.add("p", &DropoutLayer::p, number({0, 1, false, true}),
           "The probability that a number becomes 0.", {"probability", "rate"});
  return row("dropout", keys);
}

Row sequential() {
  Schema<SequentialLayer> keys;
  keys.add("layers", &SequentialLayer::layers, nested_layers(), "Layers one after the other.");
  return row("sequential", keys, {"layers"});
}

Row residual() {
  using Kind = ResidualLayer;
  Schema<Kind> keys;
  keys.add("layers", &Kind::layers, nested_layers(), "Layers one after the other.");
  keys.add("shortcut", &Kind::shortcut, nested_layers(),
           "Layers that the input passes before it is added; empty: it is added as it is.",
           {"downsample"});
  keys.add("activation", &Kind::activation,
           optional_of(
               activation_type({Activation::kRelu, Activation::kGelu, Activation::kSilu,
                                Activation::kTanh, Activation::kSigmoid, Activation::kLeakyRelu})),
           "A function of the sum.");
  keys.add(
      "modules", &Kind::modules, list_of(module_name()),
      "Names of all layers with weights, in the order of the state_dict: then they stand there "
      "without layers. and shortcut. before their names.");
  return row("residual", keys, {"layers"});
}

Row repeat() {
  Schema<RepeatLayer> keys;
  keys.add("times", &RepeatLayer::times, integer(1, kMaxCount), "How often.", {"count", "n"});
  keys.add("layers", &RepeatLayer::layers, nested_layers(), "Layers one after the other.");
  return row("repeat", keys, {"times", "layers"});
}

const std::vector<Row>& table() {
  static const std::vector<Row> kTable{conv2d(),
                                       linear(),
                                       batch_norm(),
                                       group_norm(),
                                       activation(Activation::kRelu),
                                       gelu(),
                                       activation(Activation::kSilu),
                                       activation(Activation::kTanh),
                                       activation(Activation::kSigmoid),
                                       leaky_relu(),
                                       max_pool2d(),
                                       avg_pool2d(),
                                       adaptive_avg_pool2d(),
                                       row<FlattenLayer>("flatten", {}),
                                       dropout(),
                                       sequential(),
                                       residual(),
                                       repeat()};
  return kTable;
}

/// Returns the type of lists, whose layers may hold lists again.
const Type<LayerList>& layer_list_type() {
  static const Type<LayerList> kType =
      list_of(strict_json::named_union(table(), {{"batch_norm2d", "batch_norm"},
                                                 {"BatchNorm2d", "batch_norm"},
                                                 {"BatchNorm1d", "batch_norm"},
                                                 {"dense", "linear"},
                                                 {"conv", "conv2d"},
                                                 {"swish", "silu"},
                                                 {"global_avg_pool", "adaptive_avg_pool2d"}}));
  return kType;
}

}  // namespace

std::string name_of(const LayerKind& kind) {
  const Json entry = layer_list_type().write({Layer{"", kind}}).front();
  return entry.is_string() ? entry : entry["name"];
}

std::string write_layers(const LayerList& layers) { return layer_list_type().write(layers).dump(); }

Json layer_list_schema() { return layer_list_type().fragment; }

Type<LayerList> layer_list() { return nested_layers(); }

}  // namespace mnist_train::settings
