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

ImageShape augmented(const settings::RunConfig& config, ImageShape shape) {
  const settings::ImageSize size =
      settings::augmented_size(config.data.augment, {shape.height, shape.width});
  shape.height = size.height;
  shape.width = size.width;
  return shape;
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

std::optional<ImageShape> configured_shape(const settings::RunConfig& config) {
  const settings::DataOptions& options = config.data;
  if (options.format) return std::nullopt;
  const settings::NamedDataset& row = settings::named_dataset(*options.dataset);
  const settings::ImageSize size = options.size.value_or(row.size);
  return augmented(config,
                   {options.channels.value_or(row.channels), size.height, size.width, row.classes});
}

ImageShape read_shape(const settings::RunConfig& config) {
  settings::DataOptions options = config.data;
  options.decode = settings::Decode::kStream;  // nothing is decoded, so no memory is needed for it
  const data::DatasetReader reader(options, config.train.seed);
  const data::ImageGeometry& images = reader.geometry();
  return augmented(config, {images.channels, images.height, images.width, reader.classes()});
}

network::Network checked_network(const settings::RunConfig& config, const ImageShape& images,
                                 const Node& document) {
  try {
    return network::make_network(config.model, images);
  } catch (const network::LayerError& error) {
    const std::string pointer = "/model/layers" + error.pointer();
    const Node& node = value_at(document, pointer);
    strict_json::throw_if_any({{node.source, node.offset, pointer, error.reason()}});
    throw;
  }
}

}  // namespace mnist_train::cli
