#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "settings/run_config.h"

namespace mnist_train::settings {

namespace {

using strict_json::Node;

/// A key of a group, and another one that it drops from lower layers.
struct Exclusion {
  std::string_view group;  // "": the top level
  std::string_view key;
  std::string_view other;
  bool when_changed = false;  // only where the lower layer has another value for `key`
};

constexpr std::array<Exclusion, 18> kExclusions{{
    {"data", "dataset", "format"},
    {"data", "dataset", "train"},
    {"data", "dataset", "test"},
    {"data", "train", "train_per_process"},
    {"data", "train_per_process", "train"},
    {"data", "format", "dataset"},
    {"data", "format", "root"},
    {"data", "format", "train", true},
    {"data", "format", "test", true},
    {"model", "name", "hidden", true},
    {"model", "name", "activation", true},
    {"schedule", "name", "max_learning_rate", true},
    {"schedule", "name", "pct_start", true},
    {"schedule", "name", "div_factor", true},
    {"schedule", "name", "final_div_factor", true},
    {"schedule", "name", "factor", true},
    {"schedule", "name", "patience", true},
    {"schedule", "name", "min_learning_rate", true},
}};

/// The ways to say which network it is, and what belongs to one of them alone.
constexpr std::array<std::string_view, 4> kNetworks{"name", "layers", "torchscript", "plugin"};
constexpr std::array<Exclusion, 3> kPartsOfNetworks{
    {{"model", "name", "hidden"}, {"model", "name", "activation"}, {"model", "plugin", "options"}}};

const Node* group_of(const Node& root, std::string_view name) {
  return name.empty() ? &root : root.find(name);
}

const Node* find_given(const Node& group, std::string_view key) {
  const Node* value = group.find(key);
  return value != nullptr && value->kind != strict_json::JsonKind::kNull ? value : nullptr;
}

bool applies(const Exclusion& exclusion, const Node& under, const Node& over) {
  const Node* under_group = group_of(under, exclusion.group);
  const Node* over_group = group_of(over, exclusion.group);
  if (under_group == nullptr || over_group == nullptr) return false;
  const Node* value = find_given(*over_group, exclusion.key);
  if (value == nullptr || !exclusion.when_changed) return value != nullptr;
  const Node* before = find_given(*under_group, exclusion.key);
  return before != nullptr && before->string != value->string;
}

void drop(Node& root, const Exclusion& exclusion) {
  Node* group = &root;
  for (Node::Member& member : root.members) {
    if (member.key == exclusion.group) group = &member.value;
  }
  std::erase_if(group->members,
                [&](const Node::Member& member) { return member.key == exclusion.other; });
}

/// Drops the network of the lower layer where the upper one has another way to say which it is.
void drop_other_networks(Node& under, const Node& over) {
  for (const std::string_view key : kNetworks) {
    if (!applies({"model", key, ""}, under, over)) continue;
    for (const std::string_view other : kNetworks) {
      if (other != key) drop(under, {"model", key, other});
    }
    for (const Exclusion& part : kPartsOfNetworks) {
      if (part.key != key) drop(under, part);
    }
  }
}

}  // namespace

Node merge_layers(Node under, Node over) {
  for (const Exclusion& exclusion : kExclusions) {
    if (applies(exclusion, under, over)) drop(under, exclusion);
  }
  drop_other_networks(under, over);
  return strict_json::merge(std::move(under), std::move(over));
}

}  // namespace mnist_train::settings
