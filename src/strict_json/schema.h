#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strict_json/composite_type.h"
#include "strict_json/field.h"
#include "strict_json/schema_rule.h"

namespace mnist_train::strict_json {

/// The table of a group's keys, in the order in which they are written. One definition validates,
/// fills the struct, writes it back and describes it as JSON Schema. The defaults are those of a
/// newly made `Owner`.
///
///     Schema<TrainOptions> schema;
///     schema.add("epochs", &TrainOptions::epochs, integer(1, 1000), "Passes over the data.");
///     schema.conflict("batch_size_per_process", "batch_size");
template <class Owner>
class Schema {
 public:
  using Check = std::function<void(Owner&, const JsonCursor&)>;

  /// Adds a key that fills a member; returns its row, of which more can be said.
  template <class T>
  Field<Owner>& add(std::string name, T Owner::*member, const Type<T>& type, std::string doc,
                    const std::vector<std::string>& other_names = {}) {
    return add(member_field(std::move(name), member, type, std::move(doc), other_names));
  }

  Field<Owner>& add(Field<Owner> field) { return fields_.emplace_back(std::move(field)); }
  Field<Owner>& add_first(Field<Owner> field) {
    return *fields_.insert(fields_.begin(), std::move(field));
  }

  /// Puts the keys, rules and checks of a part at the level of this group.
  template <class Part>
  void include(Part Owner::*member, const Schema<Part>& part) {
    for (const Field<Part>& key : part.fields_) add(field_of_part(member, key));
    rules_.insert(rules_.end(), part.rules_.begin(), part.rules_.end());
    absent_.insert(absent_.end(), part.absent_.begin(), part.absent_.end());
    for (const auto& each : part.checks_) {
      check([member, each](Owner& owner, const JsonCursor& at) { each(owner.*member, at); });
    }
  }

  /// Says why there are no keys of these names, which others would look for.
  void explain_absent(const Explanations& absent) { absent_ = absent; }

  /// Refuses objects that meet a condition, in the program and in the JSON Schema.
  void forbid(std::string where, Json condition, std::string message) {
    rules_.push_back({std::move(where), std::move(condition), std::move(message)});
  }

  /// Refuses two keys that are both given; the error names `key`.
  void conflict(const std::string& key, const std::string& other) {
    rules_.push_back({key, all_of({given(key), given(other)}),
                      "conflicts with " + other + "; set only one of them", other});
  }

  /// Adds what JSON Schema cannot say. It sees the group after its keys, and may complete it.
  void check(Check each) { checks_.push_back(std::move(each)); }

  /// Reads an object, or returns nothing where the value is none. Errors are added to the cursor; a
  /// key that could not be read keeps its default.
  std::optional<Owner> read(const JsonCursor& cursor) const {
    if (cursor.node().kind != JsonKind::kObject) {
      cursor.add_mismatch("an object", hint_for_name(fields_, cursor));
      return std::nullopt;
    }
    Owner owner;
    for (const Field<Owner>& field : fields_) field.read_member(owner, cursor);
    cursor.add_unknown_keys(keys(), absent_);
    if (cursor.is_layer()) return owner;
    apply_rules(rules_, cursor);
    for (const Check& each : checks_) each(owner, cursor);
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
    if (!rules_.empty()) described["allOf"] = describe_rules(rules_);
    return described;
  }

  std::vector<KnownKey> keys() const { return keys_of(fields_); }

 private:
  template <class Other>
  friend class Schema;

  std::vector<Field<Owner>> fields_;
  std::vector<Rule> rules_;
  std::vector<Check> checks_;
  Explanations absent_;
};

/// Returns the type of an object that has a table of its own.
template <class T>
Type<T> group(Schema<T> schema) {
  const auto shared = std::make_shared<const Schema<T>>(std::move(schema));
  return {[shared](const JsonCursor& cursor) { return shared->read(cursor); },
          [shared](const T& value) { return shared->write(value); }, shared->describe(),
          shared->keys()};
}

}  // namespace mnist_train::strict_json
