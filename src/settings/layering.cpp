#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "settings/run_config.h"
#include "strict_json/value_type.h"

namespace mnist_train::settings {

namespace {

using strict_json::JsonKind;
using strict_json::Node;

/// A key of a group, and another one that it drops from lower layers.
struct Exclusion {
  std::string_view group;
  std::string_view key;
  std::string_view other;
};

constexpr std::array<Exclusion, 8> kExclusions{{{"data", "dataset", "format"},
                                                {"data", "dataset", "train"},
                                                {"data", "dataset", "test"},
                                                {"data", "dataset", "train_per_process"},
                                                {"data", "train", "train_per_process"},
                                                {"data", "train_per_process", "train"},
                                                {"data", "format", "dataset"},
                                                {"data", "format", "root"}}};

/// The ways to say which network it is, and what belongs to one of them alone.
constexpr std::array<std::string_view, 4> kNetworks{"name", "layers", "torchscript", "plugin"};
constexpr std::array<Exclusion, 3> kPartsOfNetworks{
    {{"model", "name", "hidden"}, {"model", "name", "activation"}, {"model", "plugin", "options"}}};

/// A key that means something only beside some values of another key of its group: beside `owner`
/// or, where `owned_by_others`, beside all values but that.
struct DependentKey {
  std::string_view group;
  std::string_view key;
  std::string_view part;
  std::string_view owner;
  bool owned_by_others = false;
};

constexpr std::array<DependentKey, 12> kDependentKeys{{
    {"data", "format", "train", "synthetic", true},
    {"data", "format", "test", "synthetic", true},
    {"data", "format", "train_per_process", "synthetic", true},
    {"model", "name", "hidden", "mlp"},
    {"model", "name", "activation", "mlp"},
    {"schedule", "name", "max_learning_rate", "one_cycle"},
    {"schedule", "name", "pct_start", "one_cycle"},
    {"schedule", "name", "div_factor", "one_cycle"},
    {"schedule", "name", "final_div_factor", "one_cycle"},
    {"schedule", "name", "factor", "plateau"},
    {"schedule", "name", "patience", "plateau"},
    {"schedule", "name", "min_learning_rate", "plateau"},
}};

/// A key that takes an object, or a value that stands for an object of one key; for an empty one
/// where `stands_for` is "".
struct Shorthand {
  std::string_view group;  // "": the top level
  std::string_view key;
  std::string_view stands_for;
};

constexpr std::array<Shorthand, 4> kShorthands{{{"", "deterministic", ""},
                                                {"model", "init", "name"},
                                                {"data", "train", "images"},
                                                {"data", "test", "images"}}};

Node* member_of(Node& object, std::string_view key) {
  for (Node::Member& member : object.members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

/// Returns the value of a key where the layer gives one other than null.
Node* given(Node& layer, std::string_view group, std::string_view key) {
  Node* object = group.empty() ? &layer : member_of(layer, group);
  Node* value = object == nullptr ? nullptr : member_of(*object, key);
  return value == nullptr || value->kind == JsonKind::kNull ? nullptr : value;
}

void drop(Node& layer, std::string_view group, std::string_view key) {
  if (Node* object = member_of(layer, group)) {
    std::erase_if(object->members, [&](const Node::Member& member) { return member.key == key; });
  }
}

using Layers = std::vector<Node>;

/// Returns how many layers there are below the last one that gives the key; 0 where none does.
std::size_t count_below(Layers& layers, std::string_view group, std::string_view key) {
  for (std::size_t i = layers.size(); i > 0; --i) {
    if (given(layers[i - 1], group, key) != nullptr) return i - 1;
  }
  return 0;
}

/// Drops the networks below the last layer that says which it is, unless it says it the same way.
void drop_other_networks(Layers& layers) {
  std::string_view last;
  std::size_t below = 0;
  for (const std::string_view key : kNetworks) {
    const std::size_t count = count_below(layers, "model", key);
    if (count <= below) continue;
    last = key;
    below = count;
  }
  for (std::size_t i = 0; i < below; ++i) {
    for (const std::string_view key : kNetworks) {
      if (key != last) drop(layers[i], "model", key);
    }
    for (const Exclusion& part : kPartsOfNetworks) {
      if (part.key != last) drop(layers[i], part.group, part.other);
    }
  }
}

/// Drops a part from each layer above which its key changes, if the layer gives the key as well or
/// the part does not belong to the key's last value. Else the part stays: what a layer gives
/// without the key is meant for whatever the key comes to.
void drop_part(Layers& layers, const DependentKey& dependent) {
  const std::size_t below = count_below(layers, dependent.group, dependent.key);
  std::optional<std::string> value;  // of the key, up to layer i
  for (std::size_t i = 0; i < below; ++i) {
    const std::string& last = given(layers[below], dependent.group, dependent.key)->string;
    const Node* own = given(layers[i], dependent.group, dependent.key);
    if (own != nullptr) value = own->string;
    if (!value || *value == last) continue;
    const bool belongs = (last == dependent.owner) != dependent.owned_by_others;
    if (own != nullptr || !belongs) drop(layers[i], dependent.group, dependent.part);
  }
}

/// Writes a value of --set as the object that it stands for, if another --set gives another key of
/// that object: then it does not matter which of them comes first.
void expand(Layers& layers, const Shorthand& shorthand) {
  const auto typed = [&](Node& layer) {
    return layer.source->typed_value ? given(layer, shorthand.group, shorthand.key) : nullptr;
  };
  const bool has_object = std::any_of(layers.begin(), layers.end(), [&](Node& layer) {
    const Node* value = typed(layer);
    return value != nullptr && value->kind == JsonKind::kObject &&
           value->find(shorthand.stands_for) == nullptr;
  });
  if (!has_object) return;
  for (Node& layer : layers) {
    Node* value = typed(layer);
    if (value == nullptr || value->kind == JsonKind::kObject) continue;
    const bool is_flag = shorthand.stands_for.empty();
    if (is_flag ? !value->boolean : !strict_json::text_of(*value)) continue;
    Node object;
    object.kind = JsonKind::kObject;
    object.source = value->source;
    object.offset = value->offset;
    if (!is_flag) {
      object.members.push_back({std::string(shorthand.stands_for), value->offset, *value});
    }
    *value = std::move(object);
  }
}

}  // namespace

Node merge_layers(std::vector<Node> layers) {
  for (const Shorthand& shorthand : kShorthands) expand(layers, shorthand);
  for (const Exclusion& exclusion : kExclusions) {
    const std::size_t below = count_below(layers, exclusion.group, exclusion.key);
    for (std::size_t i = 0; i < below; ++i) drop(layers[i], exclusion.group, exclusion.other);
  }
  drop_other_networks(layers);
  for (const DependentKey& dependent : kDependentKeys) drop_part(layers, dependent);
  Node merged = std::move(layers.front());
  for (std::size_t i = 1; i < layers.size(); ++i) {
    merged = strict_json::merge(std::move(merged), std::move(layers[i]));
  }
  return merged;
}

}  // namespace mnist_train::settings
