#include "cli/network_check.h"

#include <string>

#include "data/dataset_reader.h"
#include "strict_json/json_cursor.h"

namespace mnist_train::cli {

namespace {

using network::ImageShape;
using strict_json::Node;

ImageShape images_of(const settings::DataOptions& options) {
  if (const auto known = network::known_images(options)) return *known;
  const data::ImageSet images = data::shape_of_images(options);
  return {images.channels, images.height, images.width, images.classes};
}

using Locators = std::map<const strict_json::Source*, strict_json::TextLocator>;

/// Nodes come mostly in the order of their text, so that each text is gone through once.
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

network::Network checked_network(const settings::RunConfig& config) {
  return network::make_network(config.model,
                               network::model_input(config.data, images_of(config.data)));
}

void check_network(const CommandLine& line, const settings::RunConfig& config) {
  const bool uses_model = line.command == Command::kTrain || line.command == Command::kEvaluate;
  if (!uses_model || !config.model.has_layers()) return;
  if (network::known_images(config.data)) return (void)checked_network(config);
  if (line.dry_run) return;
  // Opening a data set may take a while; for networks with a name the ranks report the same.
  if (config.model.layers) (void)checked_network(config);
}

}  // namespace mnist_train::cli
