#include "strict_json/json_cursor.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/glob.h"

namespace mnist_train::strict_json {

namespace {

/// Suggestions are slow, and a text with more unknown keys than this is no config.
constexpr std::size_t kMaxExplanations = 100;

constexpr std::size_t kLongestComparedName = 40;

/// Returns the name without case and separators: "batchSize" and "batch-size" are batch_size.
std::string plain(std::string_view name) {
  std::string letters;
  for (const char character : name) {
    if (character == '_' || character == '-' || character == ' ') continue;
    letters += static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
  }
  return letters;
}

std::string in_quotes(std::string_view name) { return '"' + std::string(name) + '"'; }

std::string text_of_group(std::string_view group) {
  return group.empty() ? "at the top level" : "in " + std::string(group);
}

/// Returns the key that other programs call `given`, or whose spelling is close.
const KnownKey* similar_key(std::string_view given, const std::vector<const KnownKey*>& keys) {
  std::vector<std::string> names;
  for (const KnownKey* key : keys) {
    const auto is_given = [&](const std::string& name) { return plain(name) == plain(given); };
    if (std::ranges::any_of(key->other_names, is_given)) return key;
    names.push_back(key->name);
  }
  const std::optional<std::string> name = closest_name(given, names);
  if (!name) return nullptr;
  return *std::ranges::find(keys, *name, &KnownKey::name);
}

/// Returns the groups that have a key of this name.
std::string groups_with(std::string_view name, const std::vector<const KnownKey*>& keys) {
  std::string groups;
  for (const KnownKey* key : keys) {
    if (key->name != name) continue;
    if (!groups.empty()) groups += " or ";
    groups += text_of_group(key->group);
  }
  return groups;
}

/// Returns the key that is written as `--set` writes it: "data.limit_train".
const KnownKey* dotted_key(std::string_view given, const std::vector<const KnownKey*>& keys) {
  std::string pointer = "/" + std::string(given);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  const auto found = std::ranges::find_if(keys, [&](const KnownKey* key) {
    return !key->group.empty() && pointer == key->group + "/" + key->name;
  });
  return found == keys.end() ? nullptr : *found;
}

std::string listing(const std::vector<const KnownKey*>& keys) {
  std::string names = "known here: ";
  for (const KnownKey* key : keys) names += (key == keys.front() ? "" : ", ") + key->name;
  return names;
}

}  // namespace

JsonCursor JsonCursor::item(std::size_t index) const {
  return {node_->items[index], join_pointer(pointer_, std::to_string(index)), *context_};
}

JsonCursor JsonCursor::member(std::string_view key) const {
  return {*node_->find(key), join_pointer(pointer_, std::string(key)), *context_};
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

std::string JsonCursor::suggest_member(const std::string& key) const {
  std::string dotted = pointer_.empty() ? "" : pointer_.substr(1) + "/";
  std::ranges::replace(dotted, '/', '.');
  const auto& text = node_->value.get_ref<const std::string&>();
  return "; did you mean {\"" + key + "\": \"" + text + "\"} (--set " + dotted + key + "=" + text +
         ")?";
}

void JsonCursor::add_unknown_keys(const std::vector<KnownKey>& own,
                                  const Explanations& absent) const {
  std::vector<KnownKey> keys;
  std::size_t count = 0;
  for (const Node::Member& member : node_->members) {
    const auto is_this = [&](const KnownKey& key) {
      return key.group.empty() && key.name == member.key;
    };
    if (std::ranges::any_of(own, is_this)) continue;
    if (keys.empty()) keys = known_keys(own);
    std::string message = "unknown key \"" + shorten(member.key) + '"';
    const auto why = std::ranges::find(absent, member.key, &Explanations::value_type::first);
    if (why != absent.end()) {
      message += "; " + why->second;
    } else if (++count <= kMaxExplanations) {
      message = explain_unknown_key(member.key, pointer_, keys);
    }
    context_->problems.push_back({member.value.source, member.key_offset,
                                  join_pointer(pointer_, member.key), std::move(message)});
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

bool takes_name(const Json& fragment, const Node& node) {
  if (!node.value.is_string()) return false;
  if (fragment.contains("anyOf")) {
    return std::any_of(fragment.at("anyOf").begin(), fragment.at("anyOf").end(),
                       [&](const Json& choice) { return takes_name(choice, node); });
  }
  if (!fragment.contains("enum")) return false;
  const Json& names = fragment.at("enum");
  return std::find(names.begin(), names.end(), node.value) != names.end();
}

std::string place_of(const Node& node) {
  const std::string text = format_problem({node.source, node.offset, "", ""});
  return text.substr(0, text.rfind(": /"));
}

std::string describe(const Node& node) {
  if (node.value.is_array()) return "a list";
  if (node.value.is_object()) return "an object";
  if (node.value.is_string()) {
    return "the string \"" + shorten(node.value.get_ref<const std::string&>()) + '"';
  }
  // As written: 10.0 and 1e1 are not the integer 10.
  return shorten(word_at(node.source->text, node.offset));
}

std::optional<std::string> closest_name(std::string_view given,
                                        const std::vector<std::string>& names) {
  const std::string wanted = plain(given);
  if (wanted.size() > kLongestComparedName) return std::nullopt;
  constexpr std::size_t kTelling = 3;
  for (const std::string& name : names) {
    if (wanted.size() >= kTelling && plain(name).starts_with(wanted)) return name;
  }
  // Two edits are too many in a short name.
  std::size_t best = wanted.size() <= 4 ? 2 : 3;
  std::optional<std::string> closest;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(wanted, plain(name));
    if (distance < best && distance < wanted.size()) {
      best = distance;
      closest = name;
    }
  }
  return closest;
}

std::string explain_unknown_key(std::string_view key, std::string_view group,
                                const std::vector<KnownKey>& keys) {
  const std::string start = "unknown key " + in_quotes(shorten(key)) + "; ";
  std::vector<const KnownKey*> here, elsewhere;
  for (const KnownKey& known : keys) (known.group == group ? here : elsewhere).push_back(&known);

  if (const KnownKey* meant = similar_key(key, here)) {
    return start + "did you mean " + in_quotes(meant->name) + "?";
  }
  if (const std::string groups = groups_with(key, elsewhere); !groups.empty()) {
    return start + "it belongs " + groups;
  }
  if (const KnownKey* meant = dotted_key(key, elsewhere)) {
    return start + "it is " + in_quotes(meant->name) + " " + text_of_group(meant->group);
  }
  if (const KnownKey* meant = similar_key(key, elsewhere)) {
    return start + "did you mean " + in_quotes(meant->name) + " " + text_of_group(meant->group) +
           "?";
  }
  return start + listing(here);
}

}  // namespace mnist_train::strict_json
