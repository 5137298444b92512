#include "interchange/python_module.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "interchange/input_text.h"
#include "interchange/python_layers.h"

namespace mnist_train::interchange {

namespace {

using network::SizedLayer;

constexpr const char* kLevel = "    ";

constexpr const char* kDocstring = R"("""The network of a run of mnist-train, in PyTorch.

The weights come from the run's model.pt:

    model = make_model()
    model.load_state_dict(torch.load("model.pt", weights_only=True), strict=True)
    model.eval()

{}
"""

)";

constexpr const char* kResidual = R"(

class Residual(nn.Module):
    """The sum of what `layers` and `shortcut` make of the same input."""

    def __init__(self, layers, shortcut=None, activation=None):
        super().__init__()
        self.layers = layers
        self.shortcut = shortcut
        self.activation = activation

    def forward(self, x):
        y = self.layers(x) + (x if self.shortcut is None else self.shortcut(x))
        return y if self.activation is None else self.activation(y)
)";

constexpr const char* kFlatResidual = R"(

class FlatResidual(nn.Module):
    """A residual block that holds the modules of its layers itself, by their names.

    `layers` and `shortcut` are names of modules, in the order in which they compute.
    """

    def __init__(self, modules, layers, shortcut=(), activation=None):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self._layers = layers
        self._shortcut = shortcut
        self._activation = activation

    def forward(self, x):
        y = x
        for name in self._layers:
            y = getattr(self, name)(y)
        for name in self._shortcut:
            x = getattr(self, name)(x)
        return y + x if self._activation is None else self._activation(y + x)
)";

/// Returns the text with all lines but the first moved to the right by one level.
std::string indented(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    result += letter;
    if (letter == '\n') result += kLevel;
  }
  return result;
}

/// Returns a call or a list with a line for each argument.
std::string block(const std::string& begin, const Arguments& arguments, const std::string& end) {
  std::string text = begin + "\n";
  for (const std::string& argument : arguments) text += kLevel + indented(argument) + ",\n";
  return text + end;
}

/// Writes layers as expressions of Python that make their modules.
class ExpressionWriter {
 public:
  /// Returns the layers as an nn.Sequential, with names where they have other names than their
  /// indices.
  std::string sequential(const std::vector<SizedLayer>& layers) {
    Arguments modules;
    NamedModules named;
    bool has_names = false;
    for (const SizedLayer& sized : layers) {
      has_names = has_names || sized.name != std::to_string(modules.size());
      modules.push_back(module(sized));
      named.emplace_back(sized.name, modules.back());
    }
    if (!has_names) return block("nn.Sequential(", modules, ")");
    return "nn.Sequential(" + ordered_dict(named) + ")";
  }

  /// Returns what the expressions need in front of them.
  std::string imports() const {
    return std::string(has_ordered_dict_ ? "from collections import OrderedDict\n\n" : "") +
           "from torch import nn\n";
  }
  std::string classes() const {
    return std::string(has_residual_ ? kResidual : "") + (has_flat_residual_ ? kFlatResidual : "");
  }

 private:
  using NamedModules = std::vector<std::pair<std::string, std::string>>;

  std::string ordered_dict(const NamedModules& modules) {
    has_ordered_dict_ = true;
    Arguments pairs;
    for (const auto& [name, module] : modules) {
      pairs.push_back(fmt::format("(\"{}\", {})", name, module));
    }
    return block("OrderedDict([", pairs, "])");
  }

  std::string module(const SizedLayer& sized) {
    return std::visit([&](const auto& layer) { return module(sized, layer); }, sized.kind);
  }

  template <class Leaf>
  static std::string module(const SizedLayer& sized, const Leaf& layer) {
    if constexpr (requires { expression_of(sized, layer); }) {
      return expression_of(sized, layer);
    } else {
      return expression_of(layer);
    }
  }

  std::string module(const SizedLayer& sized, const settings::SequentialLayer& /*layer*/) {
    return sequential(sized.layers);
  }

  std::string module(const SizedLayer& sized, const settings::RepeatLayer& /*layer*/) {
    return sequential(sized.layers);
  }

  std::string module(const SizedLayer& sized, const settings::ResidualLayer& layer) {
    if (!layer.modules.empty()) return flat_residual(sized, layer);
    has_residual_ = true;
    Arguments arguments{sequential(sized.layers)};
    if (!sized.shortcut.empty()) arguments.push_back("shortcut=" + sequential(sized.shortcut));
    add_activation(layer, arguments);
    return block("Residual(", arguments, ")");
  }

  std::string flat_residual(const SizedLayer& sized, const settings::ResidualLayer& layer) {
    has_flat_residual_ = true;
    std::set<std::string> names(layer.modules.begin(), layer.modules.end());
    NamedModules modules;
    for (const std::string& name : layer.modules) modules.emplace_back(name, "");
    const auto add_list = [&](const std::vector<SizedLayer>& layers) {
      Arguments order;
      for (const SizedLayer& inner : layers) {
        std::string name = inner.name;
        if (inner.parameters > 0) {
          const auto is_named = [&](const auto& entry) { return entry.first == name; };
          std::find_if(modules.begin(), modules.end(), is_named)->second = module(inner);
        } else {
          // Layers without weights in both lists may have one name.
          while (!names.insert(name).second) name += "_";
          modules.emplace_back(name, module(inner));
        }
        order.push_back('"' + name + '"');
      }
      return fmt::format("[{}]", fmt::join(order, ", "));
    };
    const std::string order = add_list(sized.layers);
    const std::string shortcut = add_list(sized.shortcut);
    Arguments arguments{ordered_dict(modules), "layers=" + order};
    if (!sized.shortcut.empty()) arguments.push_back("shortcut=" + shortcut);
    add_activation(layer, arguments);
    return block("FlatResidual(", arguments, ")");
  }

  static void add_activation(const settings::ResidualLayer& layer, Arguments& arguments) {
    if (!layer.activation) return;
    arguments.push_back("activation=" +
                        expression_of(settings::ActivationLayer{*layer.activation}));
  }

  bool has_ordered_dict_ = false;
  bool has_residual_ = false;
  bool has_flat_residual_ = false;
};

}  // namespace

std::string python_module(const network::Network& net,
                          const settings::NormalizeOptions& normalize) {
  ExpressionWriter writer;
  const std::string model = writer.sequential(net.layers);
  return fmt::format(kDocstring, input_text(net, normalize)) + writer.imports() + writer.classes() +
         "\n\ndef make_model():\n" + kLevel + "return " + indented(model) + "\n";
}

}  // namespace mnist_train::interchange
