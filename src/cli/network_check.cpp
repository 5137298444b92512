#include "cli/network_check.h"

#include <charconv>
#include <string>
#include <string_view>

#include "data/dataset_reader.h"

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

}  // namespace

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
  // Opening the files of a data set may take a while, which only other lists need.
  const bool opens_files = config.model.layers && !line.dry_run;
  if (network::known_images(config.data) || opens_files) (void)checked_network(layered);
}

}  // namespace mnist_train::cli
