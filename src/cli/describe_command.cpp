#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/print.h"
#include "cli/network_check.h"
#include "report/console.h"

namespace mnist_train::cli {

namespace {

using Json = nlohmann::ordered_json;
using network::Network;
using network::SizedLayer;
using report::with_thousands;

struct Row {
  std::string name;
  std::string layer;
  std::string output;
  std::string parameters;
  std::string multiply_adds;
};

std::string number(std::int64_t value) { return value == 0 ? "" : with_thousands(value); }

Row row_of(const SizedLayer& sized) {
  return {sized.path, settings::name_of(sized.kind), network::batch_text(sized.out),
          number(sized.parameters), number(sized.multiply_adds)};
}

/// Calls `visit` for each layer before the layers in it.
template <class Visit>
void for_each(const std::vector<SizedLayer>& layers, const Visit& visit) {
  for (const SizedLayer& sized : layers) {
    visit(sized);
    for_each(sized.layers, visit);
    for_each(sized.shortcut, visit);
  }
}

bool is_container(const SizedLayer& sized) { return !sized.layers.empty(); }

network::SampleShape input_of(const Network& described) { return described.layers.front().in; }

Json shape_json(const network::SampleShape& shape) {
  if (!shape.is_image) return {"N", shape.channels};
  return {"N", shape.channels, shape.height, shape.width};
}

}  // namespace

std::string describe_as_text(const Network& described) {
  std::vector<Row> rows{{"name", "layer", "output", "parameters", "multiply-adds"},
                        {"", "images", network::batch_text(input_of(described)), "", ""}};
  for_each(described.layers, [&](const SizedLayer& sized) {
    rows.push_back(row_of(sized));
    if (is_container(sized)) rows.back().parameters = rows.back().multiply_adds = "";
  });
  rows.push_back({"", "sum", "", with_thousands(described.parameters),
                  with_thousands(described.multiply_adds)});
  std::size_t names = 0, layers = 0, outputs = 0, parameters = 0, multiply_adds = 0;
  for (const Row& row : rows) {
    names = std::max(names, row.name.size());
    layers = std::max(layers, row.layer.size());
    outputs = std::max(outputs, row.output.size());
    parameters = std::max(parameters, row.parameters.size());
    multiply_adds = std::max(multiply_adds, row.multiply_adds.size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = fmt::format("{:{}}  {:{}}  {:{}}  {:>{}}  {:>{}}", row.name, names,
                                   row.layer, layers, row.output, outputs, row.parameters,
                                   parameters, row.multiply_adds, multiply_adds);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string describe_as_json(const Network& described, const settings::LayerList& layers) {
  Json modules = Json::array();
  for_each(described.layers, [&](const SizedLayer& sized) {
    modules.push_back({{"name", sized.path},
                       {"layer", settings::name_of(sized.kind)},
                       {"output", shape_json(sized.out)},
                       {"parameters", sized.parameters},
                       {"multiply_adds", sized.multiply_adds}});
  });
  const Json json = {{"input", shape_json(input_of(described))},
                     {"layers", Json::parse(settings::write_layers(layers))},
                     {"modules", modules},
                     {"parameters", described.parameters},
                     {"multiply_adds", described.multiply_adds}};
  return json.dump(2) + "\n";
}

}  // namespace mnist_train::cli
