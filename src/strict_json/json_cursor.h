#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "strict_json/document.h"
#include "strict_json/suggestion.h"

namespace mnist_train::strict_json {

/// What one reading of a document shares: where problems go, and which keys there are to suggest.
struct Reading {
  Problems& problems;
  std::vector<KnownKey> keys;
  bool values_alone = false;  // rules over several keys are left out: it is a part of a document
};

/// A value that is being read: its node, its pointer, and the ways to complain about it.
class JsonCursor {
 public:
  JsonCursor(const Node& node, std::string pointer, Reading& reading)
      : node_(&node), pointer_(std::move(pointer)), reading_(&reading) {}

  const Node& node() const { return *node_; }
  JsonCursor item(std::size_t index) const;
  /// The value of a key that is present.
  JsonCursor member(std::string_view key) const;
  bool has(std::string_view key) const { return node_->find(key) != nullptr; }
  /// Present, and not null.
  bool gives(std::string_view key) const;
  bool values_alone() const { return reading_->values_alone; }

  /// The same value where something else is accepted, too: "null", "\"auto\"". Messages then say
  /// so.
  JsonCursor or_else(std::string_view alternative) const;

  void add_error(std::string message) const;
  /// About the value of `key`; about the whole group when it is not there.
  void complain_about(std::string_view key, std::string message) const;
  /// `expected …, found …`, and a hint after it.
  void complain_expected(const std::string& expected, const std::string& hint = "") const;
  /// One problem for each key of this object that is not among `own`, relative to it.
  void complain_about_unknown_keys(const std::vector<KnownKey>& own) const;

 private:
  std::vector<KnownKey> known_keys(const std::vector<KnownKey>& own) const;

  const Node* node_;
  std::string pointer_;
  Reading* reading_;
  std::string alternatives_;
};

/// The value as a message shows it: `1.5`, `the string "ten"`, `a list`.
std::string describe(const Node& node);

}  // namespace mnist_train::strict_json
