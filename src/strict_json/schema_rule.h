#pragma once

#include <string>
#include <vector>

#include "strict_json/value_type.h"

namespace mnist_train::strict_json {

/// A rule over several keys of an object: a condition that the object must not meet. Editors judge
/// by the condition's JSON Schema, the program by `matches` on the very same text, so the two
/// cannot differ.
struct Rule {
  std::string where;    // the key that is named in errors; "data/split" for one in a group
  Json forbidden;       // a condition, as the functions below make them
  std::string message;  // what is wrong, with the key as its subject: "conflicts with train"
  std::string other{};  // a key whose place is named as well, where it is in another text
};

/// The condition that the object has the key, with a value that meets `condition`.
Json holds(const std::string& key, const Json& condition);

/// The condition that the object has the key, with a value other than null.
Json given(const std::string& key);

/// The condition that the object has the key, with this value.
Json equal(const std::string& key, const Json& value);

/// The condition that the object has the key, with a list in which at least one item meets
/// `condition`.
Json lists(const std::string& key, const Json& condition);

/// The condition that `condition` is not met.
Json none_of(const Json& condition);

/// The condition that all of `conditions` are met.
Json all_of(const std::vector<Json>& conditions);

/// The condition that at least one of `conditions` is met.
Json any_of(const std::vector<Json>& conditions);

/// Adds an error for each rule that the cursor's object breaks, at the key that the rule names, or
/// as near to it as the object goes.
void apply_rules(const std::vector<Rule>& rules, const JsonCursor& cursor);

/// Returns the rules for the "allOf" of an object's JSON Schema, each with its message.
Json describe_rules(const std::vector<Rule>& rules);

/// Returns whether a value meets a condition. Knows the JSON Schema keywords that the functions
/// above write; throws std::logic_error for any other.
bool matches(const Json& condition, const Node& value);

}  // namespace mnist_train::strict_json
