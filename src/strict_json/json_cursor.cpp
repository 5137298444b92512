#include "strict_json/json_cursor.h"

#include <algorithm>
#include <utility>

#include "strict_json/text_scan.h"

namespace mnist_train::strict_json {

namespace {

/// Suggestions take time, and a text with more unknown keys than this was never meant as a config.
constexpr std::size_t kMaxExplanations = 100;

}  // namespace

JsonCursor JsonCursor::item(std::size_t index) const {
  return {node_->items[index], join_pointer(pointer_, std::to_string(index)), *context_};
}

JsonCursor JsonCursor::member(std::string_view key) const {
  return {*node_->find(key), join_pointer(pointer_, std::string(key)), *context_};
}

bool JsonCursor::gives(std::string_view key) const {
  const Node* value = node_->find(key);
  return value != nullptr && value->kind != JsonKind::kNull;
}

JsonCursor JsonCursor::or_else(std::string_view alternative) const {
  JsonCursor same = *this;
  same.alternatives_ += " or " + std::string(alternative);
  return same;
}

void JsonCursor::add_error(std::string message) const {
  if (node_->is_broken) return;
  context_->problems.push_back({node_->source, node_->offset, pointer_, std::move(message)});
}

void JsonCursor::add_error_at(std::string_view path, std::string message) const {
  const std::string_view key = path.substr(0, path.find('/'));
  if (!has(key)) return add_error(std::move(message));
  if (key == path) return member(key).add_error(std::move(message));
  member(key).add_error_at(path.substr(key.size() + 1), std::move(message));
}

void JsonCursor::add_mismatch(const std::string& expected, const std::string& hint) const {
  add_error("expected " + expected + alternatives_ + ", found " + describe(*node_) + hint);
}

void JsonCursor::add_unknown_keys(const std::vector<KnownKey>& own) const {
  std::vector<KnownKey> keys;
  std::size_t count = 0;
  for (const Node::Member& member : node_->members) {
    const auto is_this = [&](const KnownKey& key) {
      return key.group.empty() && key.name == member.key;
    };
    if (std::any_of(own.begin(), own.end(), is_this)) continue;
    if (keys.empty()) keys = known_keys(own);
    const bool is_explained = ++count <= kMaxExplanations;
    context_->problems.push_back({member.value.source, member.key_offset,
                                  join_pointer(pointer_, member.key),
                                  is_explained ? explain_unknown_key(member.key, pointer_, keys)
                                               : "unknown key \"" + shorten(member.key) + '"'});
  }
}

std::vector<KnownKey> JsonCursor::known_keys(const std::vector<KnownKey>& own) const {
  std::vector<KnownKey> keys;
  for (const KnownKey& key : own) {
    if (key.group.empty()) keys.push_back({pointer_, key.name, key.other_names});
  }
  for (const KnownKey& key : context_->keys) {
    if (key.group != pointer_) keys.push_back(key);
  }
  return keys;
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBool:
      return node.boolean ? "true" : "false";
    case JsonKind::kString:
      return "the string \"" + shorten(node.string) + '"';
    case JsonKind::kArray:
      return "a list";
    case JsonKind::kObject:
      return "an object";
    case JsonKind::kInteger:
    case JsonKind::kUnsigned:
    case JsonKind::kReal:
      break;
  }
  // As it was written: 10.0 and 1e1 are not what 10 is.
  const std::string_view text = node.source->text;
  return shorten(text.substr(node.offset, end_of_number(text, node.offset) - node.offset));
}

}  // namespace mnist_train::strict_json
