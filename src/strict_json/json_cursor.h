#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "strict_json/document.h"

namespace mnist_train::strict_json {

/// A key of the config, for suggestions.
struct KnownKey {
  std::string group;  // pointer of the object that holds it, "" for the top level
  std::string name;
  std::vector<std::string> other_names;  // what other programs call it
};

/// Returns how many insertions, deletions, replacements and swaps of neighbours turn one name into
/// the other.
std::size_t edit_distance(std::string_view left, std::string_view right);

/// Returns the name that was probably meant: it differs from `given` by case, '-' and '_', or by at
/// most two edits.
std::optional<std::string> closest_name(std::string_view given,
                                        const std::vector<std::string>& names);

/// Returns `unknown key "lr"; did you mean "learning_rate"?`, or where the key belongs, or which
/// keys `group` has.
std::string explain_unknown_key(std::string_view key, std::string_view group,
                                const std::vector<KnownKey>& keys);

/// Names, each with the text that explains it.
using Explanations = std::vector<std::pair<std::string, std::string>>;

/// What all cursors over one document share: where errors go, and which keys there are to suggest.
struct ReadContext {
  Problems& problems;
  std::vector<KnownKey> keys;
  bool is_layer = false;  // other layers complete the document: rules over several keys wait
};

/// A value that is being read: its node, its pointer, and where errors about it go.
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
  bool gives(std::string_view key) const;

  /// Returns a cursor at the same value whose messages say that something else is accepted as well:
  /// "null", "\"auto\"".
  JsonCursor or_else(std::string_view alternative) const;

  /// Adds an error about this value. One that is no JSON has been reported already, and gets none.
  void add_error(std::string message) const;
  /// Adds an error about the value of a key, or of one in a group ("data/split"); about the group
  /// where it does not have the key.
  void add_error_at(std::string_view path, std::string message) const;
  /// Adds the error `expected …, found …` with a hint after it.
  void add_mismatch(const std::string& expected, const std::string& hint = "") const;
  /// Returns the end of a message: how this text is given as the value of a key of an object.
  std::string suggest_member(const std::string& key) const;
  /// Adds an error for each key of this object that is not among `own`, relative to it. `absent`
  /// are keys that others would look for, each with why there is none.
  void add_unknown_keys(const std::vector<KnownKey>& own, const Explanations& absent = {}) const;

 private:
  std::vector<KnownKey> known_keys(const std::vector<KnownKey>& own) const;

  const Node* node_;
  std::string pointer_;
  ReadContext* context_;
  std::string alternatives_;
};

/// Returns whether the node is a text that a JSON Schema lists in its "enum".
bool takes_name(const OrderedJson& fragment, const Node& node);

/// Returns `FILE:LINE:COLUMN` of a value.
std::string place_of(const Node& node);

/// Returns the value as a message shows it: `1.5`, `the string "ten"`, `a list`.
std::string describe(const Node& node);

}  // namespace mnist_train::strict_json
