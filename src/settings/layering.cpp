#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "settings/run_config.h"
#include "settings/schemas.h"

namespace mnist_train::settings {

namespace {

using strict_json::Node;
using Layers = std::vector<Node>;

Node* member_of(Node& object, std::string_view key) {
  for (Node::Member& member : object.members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

/// Returns the object at a pointer of at most one step, or null.
Node* group_of(Node& layer, const std::string& pointer) {
  return pointer.empty() ? &layer : member_of(layer, pointer.substr(1));
}

/// Returns the value of a key if the layer gives one other than null.
Node* value_in(Node& layer, const std::string& group, std::string_view key) {
  Node* object = group_of(layer, group);
  Node* value = object == nullptr ? nullptr : member_of(*object, key);
  return value == nullptr || value->value.is_null() ? nullptr : value;
}

void drop(Node& layer, const std::string& group, std::string_view key) {
  if (Node* object = group_of(layer, group)) {
    std::erase_if(object->members, [&](const Node::Member& member) { return member.key == key; });
  }
}

/// Returns the number of layers below the last one that gives the key; 0 if none does.
std::size_t count_below(Layers& layers, const std::string& group, std::string_view key) {
  for (std::size_t i = layers.size(); i > 0; --i) {
    if (value_in(layers[i - 1], group, key) != nullptr) return i - 1;
  }
  return 0;
}

/// Drops a key from each layer above which its owner changes, if the layer gives the owner as well
/// or the key does not belong to the owner's last value. Otherwise the key stays: a layer that
/// gives it without the owner means it for the final value.
void drop_disowned(Layers& layers, const KnownKey& key) {
  const std::size_t below = count_below(layers, key.group, key.owner.key);
  std::optional<Json> value;  // of the owner, up to layer i
  for (std::size_t i = 0; i < below; ++i) {
    const Json& last = value_in(layers[below], key.group, key.owner.key)->value;
    const Node* own = value_in(layers[i], key.group, key.owner.key);
    if (own != nullptr) value = own->value;
    if (!value || *value == last) continue;
    const bool belongs = (last == key.owner.value) != key.owner.is_any_other;
    if (own != nullptr || !belongs) drop(layers[i], key.group, key.name);
  }
}

/// Expands the shorthand value of a --set to an object if another --set gives another key of that
/// object. So their order does not matter.
void expand_shorthand(Layers& layers, const KnownKey& key) {
  const std::string& member = *key.shorthand_for;
  const auto typed = [&](Node& layer) {
    return layer.source->typed_value ? value_in(layer, key.group, key.name) : nullptr;
  };
  const bool has_object = std::ranges::any_of(layers, [&](Node& layer) {
    const Node* value = typed(layer);
    return value != nullptr && value->value.is_object() && value->find(member) == nullptr;
  });
  if (!has_object) return;
  for (Node& layer : layers) {
    Node* value = typed(layer);
    if (value == nullptr || value->value.is_object()) continue;
    if (member.empty() ? value->value != true : !strict_json::text_of(*value)) continue;
    Node object;
    object.value = Json::object();
    object.source = value->source;
    object.offset = value->offset;
    if (!member.empty()) object.members.push_back({member, value->offset, *value});
    *value = std::move(object);
  }
}

}  // namespace

Node merge_layers(std::vector<Node> layers) {
  for (const KnownKey& key : config_keys()) {
    if (key.shorthand_for) expand_shorthand(layers, key);
  }
  for (const KnownKey& key : config_keys()) {
    const std::size_t below = key.drops.empty() ? 0 : count_below(layers, key.group, key.name);
    for (std::size_t i = 0; i < below; ++i) {
      for (const std::string& other : key.drops) drop(layers[i], key.group, other);
    }
  }
  for (const KnownKey& key : config_keys()) {
    if (!key.owner.key.empty()) drop_disowned(layers, key);
  }
  Node merged = std::move(layers.front());
  for (std::size_t i = 1; i < layers.size(); ++i) {
    merged = strict_json::merge(std::move(merged), std::move(layers[i]));
  }
  return merged;
}

}  // namespace mnist_train::settings
