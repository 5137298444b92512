#include "cli/network_check.h"

#include <vector>

#include "base/print.h"
#include "data/dataset.h"
#include "network/network.h"
#include "report/result_text.h"
#include "strict_json/json_cursor.h"

namespace mnist_train::cli {

namespace {

using network::SampleShape;
using network::SizedLayer;
using strict_json::Node;

/// Returns the network with its sizes. Opens the data set's files only if they alone tell the size
/// of the images.
network::Network checked_network(const settings::RunConfig& config) {
  auto images = network::known_images(config.data);
  if (!images) {
    const data::ImageSet found = data::shape_of_images(config.data);
    images = network::ImageShape{found.channels, found.height, found.width, found.classes};
  }
  return network::make_network(config.model, network::model_input(config.data, *images));
}

using Locators = std::map<const strict_json::Source*, strict_json::TextLocator>;

/// Nodes come mostly in the order of their text, so each text is scanned about once.
void add_positions(const Node& node, const std::string& pointer, Locators& locators,
                   std::map<std::string, std::string>& positions) {
  const auto locator = locators.try_emplace(node.source.get(), node.source->text).first;
  positions[pointer] = place_text(*node.source, locator->second.locate(node.offset));
  for (const Node::Member& member : node.members) {
    const std::string below = strict_json::join_pointer(pointer, member.key);
    add_positions(member.value, below, locators, positions);
  }
  for (std::size_t i = 0; i < node.items.size(); ++i) {
    add_positions(node.items[i], pointer + "/" + std::to_string(i), locators, positions);
  }
}

std::vector<std::int64_t> sizes_of(const SampleShape& shape) {
  if (!shape.is_image) return {shape.channels};
  return {shape.channels, shape.height, shape.width};
}

/// Adds a row for each layer, before those of the layers in it.
void add_rows(const std::vector<SizedLayer>& layers, std::vector<report::ModuleRow>& rows) {
  for (const SizedLayer& sized : layers) {
    rows.push_back({sized.path, settings::name_of(sized.kind), sizes_of(sized.out),
                    sized.parameters, sized.multiply_adds, !sized.layers.empty()});
    add_rows(sized.layers, rows);
    add_rows(sized.shortcut, rows);
  }
}

void name_init(settings::LayerList& layers, const settings::InitOptions& init) {
  for (settings::Layer& layer : layers) {
    std::visit(
        [&](auto& kind) {
          if constexpr (requires { kind.init; }) kind.init = kind.init.value_or(init);
          if constexpr (requires { kind.layers; }) name_init(kind.layers, init);
          if constexpr (requires { kind.shortcut; }) name_init(kind.shortcut, init);
        },
        layer.kind);
  }
}

/// Returns the layers in the form of `model.layers`. If a built-in network does not use PyTorch's
/// default initialisation, each layer names its own.
settings::LayerList printed_layers(const settings::ModelOptions& options) {
  settings::LayerList layers = network::layers_of(options);
  const settings::InitName usual = network::init_defaults(options).name;
  const bool is_default = options.init.name == settings::InitName::kDefault;
  if (is_default && usual != settings::InitName::kDefault) name_init(layers, {usual, {}});
  return layers;
}

}  // namespace

std::map<std::string, std::string> key_positions(const CommandLine& line,
                                                 const LayeredConfig& layered) {
  std::map<std::string, std::string> positions;
  if (line.configs.empty() && line.checkpoint_file) return positions;
  Locators locators;
  for (const char* key : {"model", "data"}) {
    const Node* value = layered.document.find(key);
    if (value != nullptr) add_positions(*value, std::string("/") + key, locators, positions);
  }
  return positions;
}

void check_network(const CommandLine& line, const settings::RunConfig& config) {
  const bool uses_model = line.command == Command::kTrain || line.command == Command::kEvaluate;
  if (!uses_model || !config.model.has_layers()) return;
  // Opening a data set may take a while; for built-in networks the ranks report the same.
  const bool may_open_data = !line.dry_run && config.model.layers;
  if (network::known_images(config.data) || may_open_data) (void)checked_network(config);
}

std::string describe(const CommandLine& line, const settings::RunConfig& config) {
  const network::Network described = checked_network(config);
  report::ModuleTable table;
  table.input = sizes_of(described.layers.front().in);
  add_rows(described.layers, table.rows);
  table.parameters = described.parameters;
  table.multiply_adds = described.multiply_adds;
  if (!line.json) return report::to_text(table);
  nlohmann::ordered_json json = report::to_json(table);
  const settings::LayerList layers = printed_layers(config.model);
  json["layers"] = nlohmann::ordered_json::parse(settings::write_layers(layers));
  return json_text(json, 2) + "\n";
}

}  // namespace mnist_train::cli
