#include "cli/network_check.h"

#include <charconv>
#include <string>
#include <string_view>

#include "data/dataset_reader.h"
#include "data/first_image.h"
#include "strict_json/json_cursor.h"

namespace mnist_train::cli {

namespace {

using network::ImageShape;
using strict_json::JsonKind;
using strict_json::Node;

ImageShape images_of(const settings::DataOptions& options) {
  if (const auto known = network::known_images(options)) return *known;
  const data::ImageSet images = data::shape_of_images(options);
  return {images.channels, images.height, images.width, images.classes};
}

/// Returns the value at a pointer whose keys need no escapes, or the last one on the way there.
const Node& value_at(const Node& root, std::string_view pointer) {
  const Node* node = &root;
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    const std::string_view step = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(step.size());
    const Node* next = nullptr;
    if (node->kind == JsonKind::kArray) {
      std::size_t index = node->items.size();
      std::from_chars(step.data(), step.data() + step.size(), index);
      if (index < node->items.size()) next = &node->items[index];
    } else {
      next = node->find(step);
    }
    if (next == nullptr) break;
    node = next;
  }
  return *node;
}

void add_positions(const Node& node, const std::string& pointer,
                   std::map<std::string, std::string>& positions) {
  positions[pointer] = strict_json::place_of(node);
  for (const Node::Member& member : node.members) {
    add_positions(member.value, strict_json::join_pointer(pointer, member.key), positions);
  }
}

}  // namespace

std::map<std::string, std::string> network_positions(const LayeredConfig& layered) {
  std::map<std::string, std::string> positions;
  const Node* model = layered.document.find("model");
  if (model == nullptr) return positions;
  for (const char* key : {"torchscript", "plugin", "options"}) {
    const Node* value = model->find(key);
    if (value != nullptr) add_positions(*value, std::string("/model/") + key, positions);
  }
  return positions;
}

network::Network checked_network(const LayeredConfig& layered) {
  const settings::RunConfig& config = layered.config;
  const ImageShape input = network::model_input(config.data, images_of(config.data));
  try {
    return network::make_network(config.model, input);
  } catch (const network::LayerError& error) {
    const std::string pointer = "/model/layers" + error.pointer();
    const Node& node = value_at(layered.document, pointer);
    strict_json::throw_if_any({{node.source, node.offset, pointer, error.reason()}});
    throw;
  }
}

void check_network(const CommandLine& line, const LayeredConfig& layered) {
  const settings::RunConfig& config = layered.config;
  const bool uses_model = line.command == Command::kTrain || line.command == Command::kEvaluate;
  if (!uses_model || !config.model.has_layers()) return;
  if (network::known_images(config.data)) return (void)checked_network(layered);
  if (line.dry_run) return;
  // Opening all files of a data set may take a while, which only other lists need.
  if (config.model.layers) return (void)checked_network(layered);
  const auto first = data::first_image_geometry(config.data);
  if (!first) return;
  const ImageShape images{first->channels, first->height, first->width};
  (void)network::make_network(config.model, network::model_input(config.data, images));
}

}  // namespace mnist_train::cli
