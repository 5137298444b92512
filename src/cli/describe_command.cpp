#include <vector>

#include "base/print.h"
#include "cli/network_check.h"
#include "report/module_table.h"

namespace mnist_train::cli {

namespace {

using network::SampleShape;
using network::SizedLayer;

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

/// Returns the layers as they are pasted into `model.layers`: where a network with a name draws its
/// weights otherwise than PyTorch does, each layer says so.
settings::LayerList printed_layers(const settings::ModelOptions& options) {
  settings::LayerList layers = network::layers_of(options);
  const settings::InitName usual = network::init_defaults(options).name;
  const bool is_default = options.init.name == settings::InitName::kDefault;
  if (is_default && usual != settings::InitName::kDefault) name_init(layers, {usual, {}});
  return layers;
}

}  // namespace

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
