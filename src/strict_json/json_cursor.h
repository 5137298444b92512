#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strict_json/document.h"

namespace mnist_train::strict_json {

/// Which comparisons of two configs a key takes part in.
enum class KeyUse {
  kSteps,            // it changes what a training step computes
  kSamples,          // it changes which samples there are, or where they are stored
  kStepsAndSamples,  // both
  kNever,
};

/// A key has a meaning only beside this value of another key of its group.
struct KeyOwner {
  std::string key{};  // "": it always has one
  std::string value{};
  bool is_any_other = false;  // beside all values but `value`
};

/// A key of the config and its properties.
struct KnownKey {
  std::string group;  // pointer of the object that holds it, "" for the top level
  std::string name;
  std::vector<std::string> other_names{};  // in other programs, for suggestions
  KeyUse use = KeyUse::kSteps;
  /// Keys of the same group that a layer which gives this one drops from the layers below it.
  std::vector<std::string> drops{};
  KeyOwner owner{};
  /// A scalar value stands for an object with this key alone; true, if this is "", for {}.
  std::optional<std::string> shorthand_for{};
};

/// Returns the name that was probably meant: it differs from `given` by case, '-' and '_', or by at
/// most two edits.
std::optional<std::string> closest_name(std::string_view given,
                                        const std::vector<std::string>& names);

/// Returns `unknown key "lr"; did you mean "learning_rate"?`, or in which group the key is, or the
/// keys of `group`.
std::string explain_unknown_key(std::string_view key, std::string_view group,
                                const std::vector<KnownKey>& keys);

/// Names, each with the text that explains it.
using Explanations = std::vector<std::pair<std::string, std::string>>;

/// State shared by all cursors over one document.
struct ReadContext {
  Problems& problems;
  std::vector<KnownKey> keys;  // for suggestions
  bool is_layer = false;       // other layers complete the document: skip rules over several keys
};

/// A value that is being read: its node, its pointer, and the list for errors about it.
class JsonCursor {
 public:
  JsonCursor(const Node& node, std::string pointer, ReadContext& context)
      : node_(&node), pointer_(std::move(pointer)), context_(&context) {}

  const Node& node() const { return *node_; }
  bool is_layer() const { return context_->is_layer; }

  /// Returns a cursor at an item of this list.
  JsonCursor item(std::size_t index) const;
  /// Returns a cursor at the value of a key that this object has.
  JsonCursor member(std::string_view key) const;
  bool has(std::string_view key) const { return node_->find(key) != nullptr; }
  /// Returns whether this object has the key, with a value other than null.
  bool gives(std::string_view key) const { return has(key) && !node_->find(key)->value.is_null(); }

  /// Returns a cursor at the same value whose error messages list one more alternative: "null",
  /// "\"auto\"".
  JsonCursor or_else(std::string_view alternative) const;

  /// Adds an error about this value, unless it is broken.
  void add_error(std::string message) const;
  /// Adds an error about the value of a key, or of one in a group ("data/split"); about the group
  /// if it does not have the key.
  void add_error_at(std::string_view path, std::string message) const;
  /// Adds the error `expected …, found …`, followed by a hint.
  void add_mismatch(const std::string& expected, const std::string& hint = "") const;
  /// Returns the end of a message: how to give this text as the value of a key of an object.
  std::string suggest_member(const std::string& key) const;
  /// Adds an error for each key of this object that is not among `own`. `absent` explains keys that
  /// users may expect.
  void add_unknown_keys(const std::vector<KnownKey>& own, const Explanations& absent = {}) const;

 private:
  std::vector<KnownKey> known_keys(const std::vector<KnownKey>& own) const;

  const Node* node_;
  std::string pointer_;
  ReadContext* context_;
  std::string alternatives_;
};

/// Returns whether the node is a string that a JSON Schema lists in its "enum".
bool takes_name(const Json& fragment, const Node& node);

/// Returns `FILE:LINE:COLUMN` of a value.
std::string place_of(const Node& node);

/// Returns the value for messages: `1.5`, `the string "ten"`, `a list`.
std::string describe(const Node& node);

}  // namespace mnist_train::strict_json
