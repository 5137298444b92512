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
  return {node_->items[index], join_pointer(pointer_, std::to_string(index)), *reading_};
}

JsonCursor JsonCursor::member(std::string_view key) const {
  return {*node_->find(key), join_pointer(pointer_, std::string(key)), *reading_};
}

bool JsonCursor::gives(std::string_view key) const {
  const Node* value = node_->find(key);
  return value != nullptr && value->kind != Node::Kind::kNull;
}

JsonCursor JsonCursor::or_else(std::string_view alternative) const {
  JsonCursor same = *this;
  same.alternatives_ += " or " + std::string(alternative);
  return same;
}

void JsonCursor::add_error(std::string message) const {
  if (node_->is_broken) return;
  reading_->problems.push_back({node_->source, node_->offset, pointer_, std::move(message)});
}

void JsonCursor::complain_about(std::string_view key, std::string message) const {
  (has(key) ? member(key) : *this).add_error(std::move(message));
}

void JsonCursor::complain_expected(const std::string& expected, const std::string& hint) const {
  add_error("expected " + expected + alternatives_ + ", found " + describe(*node_) + hint);
}

void JsonCursor::complain_about_unknown_keys(const std::vector<KnownKey>& own) const {
  std::vector<KnownKey> keys;  // an object in a list stands at no place that the reading knows
  std::size_t count = 0;
  for (const Node::Member& member : node_->members) {
    const auto is_this = [&](const KnownKey& key) {
      return key.group.empty() && key.name == member.key;
    };
    if (std::any_of(own.begin(), own.end(), is_this)) continue;
    if (keys.empty()) keys = known_keys(own);
    const bool is_explained = ++count <= kMaxExplanations;
    reading_->problems.push_back({member.value.source, member.key_offset,
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
  for (const KnownKey& key : reading_->keys) {
    if (key.group != pointer_) keys.push_back(key);
  }
  return keys;
}

std::string describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kBool:
      return node.boolean ? "true" : "false";
    case Node::Kind::kString:
      return "the string \"" + shorten(node.string) + '"';
    case Node::Kind::kArray:
      return "a list";
    case Node::Kind::kObject:
      return "an object";
    case Node::Kind::kInteger:
    case Node::Kind::kUnsigned:
    case Node::Kind::kReal:
      break;
  }
  // As it was written: 10.0 and 1e1 are not what 10 is.
  const std::string_view text = node.source->text;
  return shorten(text.substr(node.offset, end_of_number(text, node.offset) - node.offset));
}

}  // namespace mnist_train::strict_json
