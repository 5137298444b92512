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

}  // namespace

std::string describe(const CommandLine& line, const LayeredConfig& layered) {
  const network::Network described = checked_network(layered);
  report::ModuleTable table;
  table.input = sizes_of(described.layers.front().in);
  add_rows(described.layers, table.rows);
  table.parameters = described.parameters;
  table.multiply_adds = described.multiply_adds;
  if (!line.json) return report::to_text(table);
  nlohmann::ordered_json json = report::to_json(table);
  const settings::LayerList layers = network::layers_of(layered.config.model);
  json["layers"] = nlohmann::ordered_json::parse(settings::write_layers(layers));
  return json_text(json, 2) + "\n";
}

}  // namespace mnist_train::cli
