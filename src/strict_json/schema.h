#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strict_json/composite_type.h"
#include "strict_json/field.h"
#include "strict_json/value_type.h"

namespace mnist_train::strict_json {

/// The table of a group's keys, in the order in which they are written. One definition validates,
/// fills the struct, writes it back and describes it: the defaults are those of a fresh `Owner`.
///
///     Schema<NormalizeOptions> schema;
///     schema.add("mean", &NormalizeOptions::mean, number({-1e6, 1e6}), "Subtracted.");
template <class Owner>
class Schema {
 public:
  template <class T>
  void add(std::string name, T Owner::*member, Type<T> type, std::string doc,
           const std::vector<std::string>& other_names = {}) {
    Field<Owner> field{std::move(name), std::move(doc), type.fragment, {}, {}, {}, type.keys};
    field.other_names = other_names;
    field.read = [member, read = type.read](Owner& owner, const JsonCursor& cursor) {
      if (std::optional<T> value = read(cursor)) owner.*member = std::move(*value);
    };
    field.write = [member, write = type.write](const Owner& owner) { return write(owner.*member); };
    add(std::move(field));
  }

  void add(Field<Owner> field) { fields_.push_back(std::move(field)); }

  /// The keys and checks of a part stand at the level of this group.
  template <class Part>
  void include(Part Owner::*member, const Schema<Part>& part) {
    for (const Field<Part>& key : part.fields()) {
      add({key.name, key.doc, key.fragment,
           [member, read = key.read](Owner& owner, const JsonCursor& cursor) {
             read(owner.*member, cursor);
           },
           [member, write = key.write](const Owner& owner) { return write(owner.*member); },
           key.other_names, key.nested});
    }
    for (const Json& rule : part.rules()) describe_rule(rule);
    for (const auto& rule : part.checks()) {
      check(
          [member, rule](Owner& owner, const JsonCursor& cursor) { rule(owner.*member, cursor); });
    }
  }

  /// A rule over several keys; it sees the group after its keys were read, and may complete it.
  void check(std::function<void(Owner&, const JsonCursor&)> rule) {
    checks_.push_back(std::move(rule));
  }

  /// What a check demands, as a JSON Schema of the whole object: editors know it, too.
  void describe_rule(Json rule) { rules_.push_back(std::move(rule)); }

  /// Every problem is reported to the place; a key that could not be read keeps its default.
  /// Nothing when the value is no object.
  std::optional<Owner> read(const JsonCursor& cursor) const {
    if (cursor.node().kind != Node::Kind::kObject) {
      cursor.complain_expected("an object");
      return std::nullopt;
    }
    Owner owner;
    for (const Field<Owner>& field : fields_) {
      if (cursor.has(field.name)) field.read(owner, cursor.member(field.name));
    }
    cursor.complain_about_unknown_keys(keys());
    if (cursor.values_alone()) return owner;
    for (const auto& rule : checks_) rule(owner, cursor);
    return owner;
  }

  Json write(const Owner& owner) const {
    Json object = Json::object();
    for (const Field<Owner>& field : fields_) {
      if (std::optional<Json> value = field.write(owner)) object[field.name] = std::move(*value);
    }
    return object;
  }

  Json describe() const {
    Json described = describe_fields(fields_);
    if (!rules_.empty()) described["allOf"] = rules_;
    return described;
  }
  std::vector<KnownKey> keys() const { return keys_of(fields_); }

  const std::vector<Field<Owner>>& fields() const { return fields_; }
  const std::vector<std::function<void(Owner&, const JsonCursor&)>>& checks() const {
    return checks_;
  }
  const std::vector<Json>& rules() const { return rules_; }

 private:
  std::vector<Field<Owner>> fields_;
  std::vector<std::function<void(Owner&, const JsonCursor&)>> checks_;
  std::vector<Json> rules_;
};

/// An object with a table of its own.
template <class T>
Type<T> group(Schema<T> schema) {
  const auto shared = std::make_shared<const Schema<T>>(std::move(schema));
  Type<T> type;
  type.read = [shared](const JsonCursor& cursor) { return shared->read(cursor); };
  type.write = [shared](const T& value) { return shared->write(value); };
  type.fragment = shared->describe();
  type.keys = shared->keys();
  return type;
}

}  // namespace mnist_train::strict_json
