#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>
#include <variant>

#include "base/json.h"
#include "base/print.h"
#include "interchange/exports.h"

namespace mnist_train::interchange {

namespace {

using network::SizedLayer;
using settings::ImageSize;
/// Arguments of a Python call.
using Arguments = std::vector<std::string>;

constexpr const char* kIndent = "    ";
/// Arguments that torch.jit.script accepts only as floats.
constexpr std::array kFloats{"eps", "momentum", "negative_slope", "p"};

/// Returns two empty lines and exported_module.py's class or function that starts with `begin`.
std::string definition(const std::string& begin) {
  const std::string_view text = kModuleTemplate;
  const std::size_t first = text.find("\n\n" + begin);
  const std::size_t last = std::min(text.find("\n\n\n", first + 2), text.size() - 1);
  return std::string(text.substr(first, last + 1 - first));
}

std::string number_text(const settings::PerChannel& value) {
  return std::visit([](const auto& number) { return fmt::format("{}", number); }, value);
}

/// The torch.nn module for a kind of layer without inner layers. Its arguments are the config's
/// keys, which have PyTorch's names.
struct TorchModule {
  const char* layer;
  const char* module;
  std::size_t positional = 0;             // number of leading keys passed as positional arguments
  std::optional<std::size_t> channels{};  // position of the number of input channels, if passed
};
constexpr std::array kTorchModules{
    TorchModule{"conv2d", "Conv2d", 2, 0},
    TorchModule{"linear", "Linear", 1, 0},
    TorchModule{"batch_norm", "BatchNorm", 0, 0},
    TorchModule{"group_norm", "GroupNorm", 1, 1},
    TorchModule{"max_pool2d", "MaxPool2d", 1},
    TorchModule{"avg_pool2d", "AvgPool2d", 1},
    TorchModule{"adaptive_avg_pool2d", "AdaptiveAvgPool2d", 1},
    TorchModule{"zero_pad2d", "ZeroPad2d", 1},
    TorchModule{"flatten", "Flatten"},
    TorchModule{"dropout", "Dropout", 1},
    TorchModule{"relu", "ReLU"},
    TorchModule{"tanh", "Tanh"},
    TorchModule{"sigmoid", "Sigmoid"},
    TorchModule{"silu", "SiLU"},
    TorchModule{"gelu", "GELU"},
    TorchModule{"leaky_relu", "LeakyReLU", 1},
    TorchModule{"relu6", "ReLU6"},
    TorchModule{"hardswish", "Hardswish"},
    TorchModule{"hardsigmoid", "Hardsigmoid"},
};

/// Returns a config value as a Python literal.
std::string literal(const OrderedJson& value) {
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (!value.is_array()) return value.dump();
  Arguments items;
  for (const OrderedJson& item : value) items.push_back(literal(item));
  return fmt::format("({})", fmt::join(items, ", "));
}

/// Returns a Python expression for a layer's module, with the arguments that differ from PyTorch's
/// defaults, or "" for a layer with inner layers.
std::string expression_of(const SizedLayer& sized, const settings::LayerKind& kind) {
  OrderedJson entry = OrderedJson::parse(settings::write_layers({{"", kind}})).front();
  if (entry.is_string()) entry = {{"name", entry}};
  const std::string name = entry["name"];
  const auto row = std::ranges::find(kTorchModules, name, &TorchModule::layer);
  if (row == kTorchModules.end()) return "";
  const bool is_pool = name == "max_pool2d" || name == "avg_pool2d";
  if (is_pool && entry.contains("stride") && entry["stride"] == entry["kernel_size"]) {
    entry.erase("stride");
  }
  if (name == "adaptive_avg_pool2d" && !entry.contains("output_size")) entry["output_size"] = 1;
  entry.erase("name");
  entry.erase("init");
  Arguments arguments;
  for (const auto& [key, value] : entry.items()) {
    const bool is_named = arguments.size() >= row->positional;
    const bool is_float = std::ranges::find(kFloats, key) != kFloats.end();
    arguments.push_back((is_named ? key + "=" : "") +
                        literal(is_float ? OrderedJson(value.get<double>()) : value));
  }
  if (row->channels) {
    arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(*row->channels),
                     std::to_string(sized.in.channels));
  }
  const char* dimensions = name != "batch_norm" ? "" : sized.in.is_image ? "2d" : "1d";
  return fmt::format("nn.{}{}({})", row->module, dimensions, fmt::join(arguments, ", "));
}

/// Indents all lines but the first by one level.
std::string indented(const std::string& text) {
  return replaced(text, "\n", std::string("\n") + kIndent);
}

/// Returns a call or list with one argument per line.
std::string block(const std::string& begin, const Arguments& arguments, const std::string& end) {
  std::string text = begin + "\n";
  for (const std::string& argument : arguments) text += kIndent + indented(argument) + ",\n";
  return text + end;
}

using NamedModules = std::vector<std::pair<std::string, std::string>>;

std::string ordered_dict(const NamedModules& modules) {
  Arguments pairs;
  for (const auto& [name, module] : modules) {
    pairs.push_back(fmt::format("(\"{}\", {})", name, module));
  }
  return block("OrderedDict([", pairs, "])");
}

// Python expressions that create the modules of layers.

std::string module_of(const SizedLayer& sized);

/// Returns the layers as an nn.Sequential, with module names unless these are indices.
std::string sequential(const std::vector<SizedLayer>& layers) {
  Arguments modules;
  NamedModules named;
  bool has_names = false;
  for (const SizedLayer& sized : layers) {
    has_names = has_names || sized.name != std::to_string(modules.size());
    modules.push_back(module_of(sized));
    named.emplace_back(sized.name, modules.back());
  }
  if (!has_names) return block("nn.Sequential(", modules, ")");
  return "nn.Sequential(" + ordered_dict(named) + ")";
}

/// Returns FlatResidual's arguments. `weighted`: names of its modules with weights, in order.
Arguments flat_arguments(const SizedLayer& sized, const std::vector<std::string>& weighted) {
  std::set<std::string> names(weighted.begin(), weighted.end());
  NamedModules modules;
  for (const std::string& name : weighted) modules.emplace_back(name, "");
  const auto add_list = [&](const std::vector<SizedLayer>& layers) {
    Arguments order;
    for (const SizedLayer& inner : layers) {
      std::string name = inner.name;
      if (inner.parameters > 0) {
        std::ranges::find(modules, name, &NamedModules::value_type::first)->second =
            module_of(inner);
      } else {
        // Layers without weights may have the same name in both lists.
        while (!names.insert(name).second) name += "_";
        modules.emplace_back(name, module_of(inner));
      }
      order.push_back('"' + name + '"');
    }
    return fmt::format("[{}]", fmt::join(order, ", "));
  };
  const std::string layers = add_list(sized.layers);
  const std::string shortcut = add_list(sized.shortcut);
  Arguments arguments{ordered_dict(modules), "layers=" + layers};
  if (!sized.shortcut.empty()) arguments.push_back("shortcut=" + shortcut);
  return arguments;
}

std::string residual_of(const SizedLayer& sized, const settings::ResidualLayer& layer) {
  const bool is_flat = !layer.modules.empty();
  Arguments arguments =
      is_flat ? flat_arguments(sized, layer.modules) : Arguments{sequential(sized.layers)};
  if (!is_flat && !sized.shortcut.empty()) {
    arguments.push_back("shortcut=" + sequential(sized.shortcut));
  }
  if (layer.activation) {
    arguments.push_back("activation=" +
                        expression_of({}, settings::ActivationLayer{*layer.activation}));
  }
  return block(is_flat ? "FlatResidual(" : "Residual(", arguments, ")");
}

std::string module_of(const SizedLayer& sized) {
  if (const auto* residual = std::get_if<settings::ResidualLayer>(&sized.kind)) {
    return residual_of(sized, *residual);
  }
  if (std::holds_alternative<settings::GateLayer>(sized.kind)) {
    return block("Gate(", {sequential(sized.layers)}, ")");
  }
  const std::string leaf = expression_of(sized, sized.kind);
  return leaf.empty() ? sequential(sized.layers) : leaf;
}

std::string constants(const network::Network& net, const Pictures& pictures) {
  Arguments classes;
  for (const std::string& name : pictures.class_names) {
    classes.push_back(json_text(nlohmann::json(name)));
  }
  return fmt::format("\n{}\nSIZE = ({}, {})  # height, width\nMODE = \"{}\"\nBACKGROUND = ({})\n",
                     block("CLASSES = [", classes, "]"), pictures.size.height, pictures.size.width,
                     net.images.channels == 1 ? "L" : "RGB", fmt::join(pictures.background, ", "));
}

/// Writes the Python statements that apply data.augment's entries to test images.
class StepWriter {
 public:
  explicit StepWriter(const Pictures& pictures) : size_(pictures.size) {
    for (const settings::AugmentationOptions& entry : pictures.augment) {
      std::visit([&](const auto& options) { add(options); }, entry);
    }
    if (are_bytes_) add(pictures.normalize);
  }

  const std::string& text() const { return text_; }

 private:
  template <class Options>
  void add(const Options& /*changes no test images*/) {}

  void add(const settings::NormalizeOptions& normalize) {
    add_line("(pixels / 255 - torch.tensor({})) / torch.tensor({})", number_text(normalize.mean),
             number_text(normalize.std));
    are_bytes_ = false;
  }
  void add(const settings::ResizeOptions& options) { add_resize(options.size); }
  void add(const settings::RandomCropOptions& options) {
    if (!options.size || *options.size == size_) return;
    add_place(*options.size, "torch.tensor(" + number_text(options.fill.value) + ")");
  }
  void add(const settings::RandomResizedCropOptions& options) {
    if (options.size == size_) return;
    const ImageSize window = settings::centre_window(options, size_);
    add_place(window, "0");
    if (window != options.size) add_resize(options.size);
  }

  void add_place(ImageSize size, const std::string& colour) {
    add_line("place(pixels, {}, {}, ({}, {}), {})",
             -settings::centre_begin(size_.height, size.height),
             -settings::centre_begin(size_.width, size.width), size.height, size.width, colour);
    size_ = size;
  }
  void add_resize(ImageSize size) {
    add_line(
        "nn.functional.interpolate(\n        pixels.permute(2, 0, 1)[None].contiguous(), ({}, {}), "
        "mode=\"bilinear\", antialias=True\n    )[0].permute(1, 2, 0){}",
        size.height, size.width, are_bytes_ ? ".round()" : "");
    size_ = size;
  }
  template <class... Values>
  void add_line(fmt::format_string<Values...> expression, Values&&... values) {
    text_ += kIndent;
    text_ += "pixels = " + fmt::format(expression, std::forward<Values>(values)...) + "\n";
  }

  std::string text_;
  ImageSize size_;
  bool are_bytes_ = true;
};

/// Returns `preprocess` and the functions it needs.
std::string preprocessing(const network::Network& net, const Pictures& pictures) {
  const auto& [channels, height, width, classes] = net.images;
  const std::string steps = StepWriter(pictures).text();
  const bool places =
      pictures.fit != settings::Fit::kStretch || steps.find("place(") != std::string::npos;
  const std::string shape = fmt::format("[1, {}, {}, {}]", channels, height, width);
  const std::string fit = std::string("fit_") + enum_name(settings::kFitNames, pictures.fit);
  const std::string result = "    return pixels";
  std::string preprocess = replaced(definition("def preprocess("), "SHAPE", shape);
  preprocess = replaced(std::move(preprocess), "fit_stretch(", "fit(");
  return definition("def resize(") + (places ? definition("def place(") : "") +
         definition("def to_pixels(") + replaced(definition("def " + fit + "("), fit, "fit") +
         replaced(std::move(preprocess), result, steps + result);
}

}  // namespace

std::string input_text(const network::Network& net, const settings::NormalizeOptions& normalize) {
  const network::ImageShape& images = net.images;
  return fmt::format(
      "Images [N,{},{},{}], float32, (pixel / 255 - mean) / std with mean {} and std {}, give "
      "logits [N,{}].",
      images.channels, images.height, images.width, number_text(normalize.mean),
      number_text(normalize.std), images.classes);
}

std::string python_module(const network::Network& net, const Pictures& pictures) {
  const std::string model = sequential(net.layers);
  const auto uses = [&](const std::string& call) { return model.find(call) != std::string::npos; };
  const std::string text = kModuleTemplate;
  std::string head = replaced(text.substr(0, text.find("import torch")), "INPUT",
                              input_text(net, pictures.normalize));
  if (uses("OrderedDict(")) head += "from collections import OrderedDict\n\n";
  head += "import torch\nfrom PIL import Image, ImageOps\nfrom torch import nn\n";
  std::string classes;
  for (const std::string name : {"Residual(", "FlatResidual(", "Gate("}) {
    if (uses(" " + name)) classes += definition("class " + name);
  }
  return head + constants(net, pictures) + classes + "\n\ndef make_model():\n" + kIndent +
         "return " + indented(model) + "\n" + preprocessing(net, pictures);
}

}  // namespace mnist_train::interchange
