#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "strict_json/value_type.h"

namespace mnist_train::strict_json {

/// One key of a group and what it does to the group's struct.
template <class Owner>
struct Field {
  std::string name;
  std::string doc;  // a sentence or two
  Json fragment;    // the JSON Schema of the value
  std::function<void(Owner&, const JsonCursor&)> read;
  std::function<std::optional<Json>(const Owner&)> write;  // nothing: the key is not written
  std::vector<std::string> other_names{};                  // what other programs call it
  std::vector<KnownKey> nested{};
  bool required = false;

  /// Reads the key's value where the object has one; adds an error where it needs one, unless
  /// another layer may have it.
  void read_member(Owner& owner, const JsonCursor& object) const {
    if (object.has(name)) {
      read(owner, object.member(name));
    } else if (required && !object.is_layer()) {
      object.add_error("needs \"" + name + '"');
    }
  }
};

/// Makes the row of a key whose value fills a member.
template <class Owner, class T>
Field<Owner> member_field(std::string name, T Owner::*member, const Type<T>& type, std::string doc,
                          const std::vector<std::string>& other_names) {
  return {std::move(name),
          std::move(doc),
          type.fragment,
          [member, read = type.read](Owner& owner, const JsonCursor& cursor) {
            if (std::optional<T> value = read(cursor)) owner.*member = std::move(*value);
          },
          [member, write = type.write](const Owner& owner) { return write(owner.*member); },
          other_names,
          type.keys};
}

/// Makes the row of a key that belongs to a part of the struct but stands at the struct's level.
template <class Owner, class Part>
Field<Owner> field_of_part(Part Owner::*member, const Field<Part>& key) {
  return {key.name,
          key.doc,
          key.fragment,
          [member, read = key.read](Owner& owner, const JsonCursor& cursor) {
            read(owner.*member, cursor);
          },
          [member, write = key.write](const Owner& owner) { return write(owner.*member); },
          key.other_names,
          key.nested,
          key.required};
}

/// Returns the JSON Schema of an object with these keys.
template <class Owner>
Json describe_fields(const std::vector<Field<Owner>>& fields) {
  const Owner defaults{};
  Json properties = Json::object();
  Json required = Json::array();
  for (const Field<Owner>& field : fields) {
    Json& property = properties[field.name];
    property["description"] = field.doc;
    property.update(field.fragment);
    if (field.required) required.push_back(field.name);
    std::optional<Json> value = field.write(defaults);
    if (value && !field.required) property["default"] = std::move(*value);
  }
  Json described = {
      {"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
  if (!required.empty()) described["required"] = std::move(required);
  return described;
}

/// Returns the end of a message: which key takes the text that was given instead of an object, if
/// one does.
template <class Owner>
std::string hint_for_name(const std::vector<Field<Owner>>& fields, const JsonCursor& cursor) {
  for (const Field<Owner>& field : fields) {
    if (takes_name(field.fragment, cursor.node())) return cursor.suggest_member(field.name);
  }
  return "";
}

/// Returns the keys, and those of the groups in them, for suggestions.
template <class Owner>
std::vector<KnownKey> keys_of(const std::vector<Field<Owner>>& fields) {
  std::vector<KnownKey> keys;
  for (const Field<Owner>& field : fields) {
    keys.push_back({"", field.name, field.other_names});
    for (const KnownKey& inner : field.nested) {
      keys.push_back({join_pointer("", field.name) + inner.group, inner.name, inner.other_names});
    }
  }
  return keys;
}

}  // namespace mnist_train::strict_json
