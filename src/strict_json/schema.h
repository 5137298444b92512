#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "strict_json/value_type.h"

namespace mnist_train::strict_json {

/// A rule over several keys of an object: a condition that the object must not meet. Editors
/// evaluate the condition's JSON Schema, the program evaluates the same text with `matches`, so the
/// two cannot differ.
struct Rule {
  std::string where;    // the key named in errors; "data/split" for one in a group
  Json forbidden;       // a condition, made by the functions below
  std::string message;  // the predicate of a sentence about the key: "conflicts with train"
};

/// The condition that the object has the key, with a value that meets `condition`.
Json holds(const std::string& key, const Json& condition);

/// The condition that the object has the key, with a value other than null.
Json given(const std::string& key);

/// The condition that the object has the key, with this value.
Json equal(const std::string& key, const Json& value);

/// The condition that the object has the key, with a list of which an item meets `condition`.
Json lists(const std::string& key, const Json& condition);

Json none_of(const Json& condition);
Json all_of(const std::vector<Json>& conditions);
Json any_of(const std::vector<Json>& conditions);

/// Adds an error for each rule that the cursor's object breaks, at the key that the rule names, or
/// at the innermost group on the way that exists.
void apply_rules(const std::vector<Rule>& rules, const JsonCursor& cursor);

/// Returns the rules for the "allOf" of an object's JSON Schema, each with its message.
Json describe_rules(const std::vector<Rule>& rules);

/// Returns whether a value meets a condition. Throws std::logic_error for JSON Schema keywords that
/// the functions above do not write.
bool matches(const Json& condition, const Node& value);

/// One key of a group and its effect on the group's struct.
template <class Owner>
struct Field {
  KnownKey key;
  std::string doc;  // a sentence or two
  Json fragment;    // the JSON Schema of the value
  std::function<void(Owner&, const JsonCursor&)> read;
  std::function<std::optional<Json>(const Owner&)> write;  // nothing: the key is not written
  std::vector<KnownKey> nested{};
  bool required = false;
};

/// The table of a group's keys, in the order in which they are written. One definition validates,
/// fills the struct, writes it back and describes it as JSON Schema.
///
///     Schema<TrainOptions> schema;
///     schema.add("epochs", &TrainOptions::epochs, integer(1, 1000), "Passes over the data.");
///     schema.conflict("batch_size_per_process", "batch_size");
template <class Owner>
class Schema {
 public:
  using Check = std::function<void(Owner&, const JsonCursor&)>;

  Schema() = default;
  explicit Schema(Owner defaults) : defaults_(std::move(defaults)) {}

  /// Adds a key that fills a member; returns its field for further attributes, valid until the next
  /// one is added.
  template <class T>
  Field<Owner>& add(std::string name, T Owner::*member, const Type<T>& type, std::string doc,
                    std::vector<std::string> other_names = {}, KeyUse use = KeyUse::kSteps) {
    return add({{"", std::move(name), std::move(other_names), use},
                std::move(doc),
                type.fragment,
                [member, read = type.read](Owner& owner, const JsonCursor& cursor) {
                  if (std::optional<T> value = read(cursor)) owner.*member = std::move(*value);
                },
                [member, write = type.write](const Owner& owner) { return write(owner.*member); },
                type.keys});
  }

  Field<Owner>& add(Field<Owner> field) { return fields_.emplace_back(std::move(field)); }

  /// Adds the required key "name", which told the reader to use this table.
  void add_name(const std::string& name) {
    const auto read = [](Owner&, const JsonCursor&) {};
    const auto write = [name](const Owner&) -> std::optional<Json> { return name; };
    add({{"", "name"}, "The kind.", {{"const", name}}, read, write}).required = true;
  }

  /// Refuses objects without this key, which must be in the table.
  void require(const std::string& name) {
    std::ranges::find(fields_, name, [](const auto& field) { return field.key.name; })->required =
        true;
  }

  /// Leaves out keys with their defaults, but not required ones, when an object is written.
  void omit_defaults() { omits_defaults_ = true; }

  /// Adds the keys, rules and checks of a part of the owner to this group. The part is a
  /// member or a function's result.
  template <class Member, class Part>
  void include(Member member, const Schema<Part>& part) {
    for (const Field<Part>& field : part.fields_) {
      add({field.key, field.doc, field.fragment,
           [member, read = field.read](Owner& owner, const JsonCursor& cursor) {
             read(std::invoke(member, owner), cursor);
           },
           [member, write = field.write](const Owner& owner) {
             return write(std::invoke(member, owner));
           },
           field.nested, field.required});
    }
    rules_.insert(rules_.end(), part.rules_.begin(), part.rules_.end());
    absent_.insert(absent_.end(), part.absent_.begin(), part.absent_.end());
    for (const auto& each : part.checks_) {
      check([member, each](Owner& owner, const JsonCursor& at) {
        each(std::invoke(member, owner), at);
      });
    }
  }

  /// Explains why keys that users may expect do not exist.
  void explain_absent(const Explanations& absent) { absent_ = absent; }

  /// Refuses objects that meet a condition, in the program and in the JSON Schema.
  void forbid(std::string where, Json condition, std::string message) {
    rules_.push_back({std::move(where), std::move(condition), std::move(message)});
  }

  /// Refuses two keys that are both given; the error names `key`.
  void conflict(const std::string& key, const std::string& other) {
    forbid(key, all_of({given(key), given(other)}),
           "conflicts with " + other + "; set only one of them");
  }

  /// Adds a check that JSON Schema cannot express. It runs after the keys are read, and may change
  /// the struct.
  void check(Check each) { checks_.push_back(std::move(each)); }

  /// Reads an object; returns nothing if the value is not one. Errors are added to the cursor; a
  /// key that could not be read keeps its default.
  std::optional<Owner> read(const JsonCursor& cursor) const {
    if (!cursor.node().value.is_object()) {
      cursor.add_mismatch("an object", hint_for_name(cursor));
      return std::nullopt;
    }
    Owner owner = defaults_;
    for (const Field<Owner>& field : fields_) {
      if (cursor.has(field.key.name)) {
        field.read(owner, cursor.member(field.key.name));
      } else if (field.required && !cursor.is_layer()) {
        cursor.add_error("needs \"" + field.key.name + '"');
      }
    }
    cursor.add_unknown_keys(keys(), absent_);
    if (cursor.is_layer()) return owner;
    apply_rules(rules_, cursor);
    for (const Check& each : checks_) each(owner, cursor);
    return owner;
  }

  /// Writes the object, without keys whose `KeyOwner`, an earlier key, has another value.
  Json write(const Owner& owner) const { return write(owner, omits_defaults_); }

  /// Returns the JSON Schema of the object.
  Json describe() const {
    const Json defaults = write(defaults_, /*omits_defaults=*/false);
    Json properties = Json::object();
    Json required = Json::array();
    for (const Field<Owner>& field : fields_) {
      const std::string& name = field.key.name;
      Json& property = properties[name];
      property["description"] = field.doc;
      property.update(field.fragment);
      if (field.required) {
        required.push_back(name);
      } else if (defaults.contains(name)) {
        property["default"] = defaults.at(name);
      }
    }
    Json described = {
        {"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
    if (!required.empty()) described["required"] = std::move(required);
    if (!rules_.empty()) described["allOf"] = describe_rules(rules_);
    return described;
  }

  /// Returns the keys, and those of the groups in them.
  std::vector<KnownKey> keys() const {
    std::vector<KnownKey> keys;
    for (const Field<Owner>& field : fields_) {
      keys.push_back(field.key);
      for (KnownKey inner : field.nested) {
        inner.group.insert(0, join_pointer("", field.key.name));
        keys.push_back(std::move(inner));
      }
    }
    return keys;
  }

 private:
  template <class Other>
  friend class Schema;

  Json write(const Owner& owner, bool omits_defaults) const {
    Json object = Json::object();
    for (const Field<Owner>& field : fields_) {
      const auto& [key, value, is_any_other] = field.key.owner;
      const bool has_owner = object.contains(key) && object.at(key) == value;
      if (!key.empty() && !is_any_other && !has_owner) continue;
      std::optional<Json> written = field.write(owner);
      const bool is_left_out =
          omits_defaults && !field.required && written == field.write(defaults_);
      if (written && !is_left_out) object[field.key.name] = std::move(*written);
    }
    return object;
  }

  /// Returns the end of a message: the key that takes the text which was given instead of an
  /// object, if there is one.
  std::string hint_for_name(const JsonCursor& cursor) const {
    for (const Field<Owner>& field : fields_) {
      if (takes_name(field.fragment, cursor.node())) return cursor.suggest_member(field.key.name);
    }
    return "";
  }

  Owner defaults_{};
  bool omits_defaults_ = false;
  std::vector<Field<Owner>> fields_;
  std::vector<Rule> rules_;
  std::vector<Check> checks_;
  Explanations absent_;
};

/// Returns the type of an object described by a table.
template <class T>
Type<T> group(Schema<T> schema) {
  const auto shared = std::make_shared<const Schema<T>>(std::move(schema));
  return {.read = [shared](const JsonCursor& cursor) { return shared->read(cursor); },
          .write = [shared](const T& value) { return shared->write(value); },
          .fragment = shared->describe(),
          .keys = shared->keys()};
}

/// One kind of object among several that the key "name" tells apart.
template <class Union>
struct Alternative {
  std::string name;
  Schema<Union> schema;                          // begins with `add_name`
  std::function<bool(const Union&)> is_of_kind;  // whether the union holds this kind
  std::optional<Union> bare{};                   // the value of the name alone, without an object
};

/// Returns the kind of a std::variant that is called `name`, with the keys of `keys`.
template <class Union, class Kind>
Alternative<Union> alternative(const std::string& name, const Schema<Kind>& keys,
                               const std::vector<std::string>& required = {}) {
  Schema<Union> schema{Union(Kind{})};
  schema.add_name(name);
  schema.include(
      [](auto& value) -> auto& { return std::get<Kind>(value); }, keys);
  for (const std::string& key : required) schema.require(key);
  return {name, std::move(schema),
          [](const Union& value) { return std::holds_alternative<Kind>(value); }};
}

/// Returns the type of an object of one of these kinds, or of the bare name of a kind that requires
/// no other key. `meant` maps names in other programs to the one to suggest.
template <class Union>
Type<Union> named_union(std::vector<Alternative<Union>> kinds,
                        const std::vector<std::pair<std::string, std::string>>& meant = {}) {
  std::vector<std::string> names;
  Json bare = Json::array();
  Json choices = Json::array();
  for (const Alternative<Union>& row : kinds) {
    names.push_back(row.name);
    choices.push_back(row.schema.describe());
    if (row.bare) bare.push_back(row.name);
  }
  if (!bare.empty()) choices.push_back({{"enum", bare}});
  const auto rows = std::make_shared<const std::vector<Alternative<Union>>>(std::move(kinds));
  return {.read = [rows, names, meant](const JsonCursor& cursor) -> std::optional<Union> {
            const bool is_object = cursor.node().value.is_object();
            if (is_object && !cursor.has("name")) {
              cursor.add_error("needs \"name\"");
              return std::nullopt;
            }
            const auto index =
                is_object ? choose_name(cursor.member("name"), names, meant)
                          : choose_name(cursor.or_else("an object with a name"), names, meant);
            if (!index) return std::nullopt;
            const Alternative<Union>& row = (*rows)[*index];
            if (is_object) return row.schema.read(cursor);
            if (!row.bare) {
              cursor.add_error("needs further keys: {\"name\": \"" + row.name + "\", …}");
            }
            return row.bare;
          },
          .write = [rows](const Union& value) -> Json {
            const auto is_its = [&](const auto& row) { return row.is_of_kind(value); };
            return std::ranges::find_if(*rows, is_its)->schema.write(value);
          },
          .fragment = {{"anyOf", choices}}};
}

}  // namespace mnist_train::strict_json
